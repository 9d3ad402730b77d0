"""Tiny data sets, made without any other program: what the runs of compare.py train on.

    make_all(folder)     # frames, table, spoken, mixed and those of FOLLOWED in it, and the autoencoders wan21 and wan22

Every byte follows from the numbers below, and every file has the same time of change, so that a cache made from them is
the same whoever made it.
"""
import json
import math
import os
import struct
import wave
import zlib
from collections.abc import Callable
from pathlib import Path

import autoencoder

SIDE, FRAMES, FPS = 48, 12, 8
CAPTIONS = ["a square that moves to the right", "a disc, on its way down", "stripes that turn brighter"]
TIME_OF_CHANGE = 1_600_000_000


def pixel(clip: int, frame: int, y: int, x: int) -> tuple:
    """A bright shape that moves another way in every clip, over a ground that is dark above and light below."""
    ground = (40 + 2 * y + 9 * clip, 50 + 2 * x, 90 + 3 * frame)
    if clip % 3 == 0:
        inside = abs(x - (4 + 3 * frame)) < 6 and abs(y - 20) < 6
    elif clip % 3 == 1:
        inside = (x - 24) ** 2 + (y - (4 + 3 * frame)) ** 2 < 49
    else:
        inside = (x + 2 * frame) // 6 % 2 == 0
    return (230, 180 - 40 * (clip % 3), 130 + 5 * frame) if inside else ground


def picture(clip: int, frame: int, height: int = SIDE, width: int = SIDE) -> bytes:
    """Rows of red, green and blue."""
    return bytes(min(255, value) for y in range(height) for x in range(width) for value in pixel(clip, frame, y, x))


def write_png(path: Path, rgb: bytes, height: int = SIDE, width: int = SIDE) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + rgb[3 * width * y:3 * width * (y + 1)] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) +
                     chunk(b"IEND", b""))


def write_avi(path: Path, frames: list, height: int = SIDE, width: int = SIDE, fps: int = FPS) -> None:
    """Pictures as they are, one after the other: what every decoder of video reads."""
    def chunk(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)

    def many(kind: bytes, *parts: bytes) -> bytes:
        return chunk(b"LIST", kind + b"".join(parts))

    size = 3 * height * width
    main = struct.pack("<14I", 1_000_000 // fps, size * fps, 0, 0x10, len(frames), 0, 1, size, width, height,
                       0, 0, 0, 0)
    stream = b"vids" + b"DIB " + struct.pack("<IHHIIIIIIiI4H", 0, 0, 0, 0, 1, fps, 0, len(frames), size, -1, 0, 0, 0,
                                             width, height)
    form = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, size, 0, 0, 0, 0)
    bodies, index, at = [], [], 4
    for rgb in frames:  # blue first, the last row first
        rows = [rgb[3 * width * y:3 * width * (y + 1)] for y in reversed(range(height))]
        turned = bytearray(b"".join(rows))
        turned[0::3], turned[2::3] = turned[2::3], turned[0::3]
        bodies.append(chunk(b"00db", bytes(turned)))
        index.append(b"00db" + struct.pack("<III", 0x10, at, size))
        at += len(bodies[-1])
    content = (many(b"hdrl", chunk(b"avih", main), many(b"strl", chunk(b"strh", stream), chunk(b"strf", form))) +
               many(b"movi", *bodies) + chunk(b"idx1", b"".join(index)))
    path.write_bytes(chunk(b"RIFF", b"AVI " + content))


def write_sound(path: Path, hertz: float, seconds: float, rate: int = 16000) -> None:
    values = (int(12000 * math.sin(2 * math.pi * hertz * i / rate) * (0.4 + 0.6 * math.sin(3.1 * i / rate) ** 2))
              for i in range(int(rate * seconds)))
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1), out.setsampwidth(2), out.setframerate(rate)
        out.writeframes(b"".join(struct.pack("<h", value) for value in values))


def write_frames(folder: Path, clip: int) -> None:
    folder.mkdir(parents=True)
    for frame in range(FRAMES):
        write_png(folder / f"frame_{frame + 1:04d}.png", picture(clip, frame))


def frame_folders(folder: Path) -> None:
    """Folders of pictures, each with its caption beside it."""
    for clip in range(3):
        write_frames(folder / f"clip{clip}", clip)
        (folder / f"clip{clip}.txt").write_text(CAPTIONS[clip] + "\n")


def table(folder: Path) -> None:
    """Videos and a table; the first clip has several captions, one row a picture of its own to begin with."""
    folder.mkdir(parents=True)
    for clip in range(3):
        write_avi(folder / f"clip{clip}.avi", [picture(clip, frame) for frame in range(FRAMES)])
    write_png(folder / "start.png", picture(1, 5))
    rows = [{"video": "clip0.avi", "prompt": [CAPTIONS[0], "the same square, said otherwise"]},
            {"video": "clip1.avi", "prompt": CAPTIONS[1], "input_image": "start.png"},
            {"video": "clip2.avi", "prompt": CAPTIONS[2]}]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def spoken(folder: Path) -> None:
    """Videos with a sound beside each; one has a video of poses as well."""
    folder.mkdir(parents=True)
    lines = ["video,prompt,audio,pose"]
    for clip in range(3):
        write_avi(folder / f"clip{clip}.avi", [picture(clip, frame) for frame in range(FRAMES)])
        write_sound(folder / f"voice{clip}.wav", 200.0 * (1 + clip), 1.5)
        pose = "clip2.avi" if clip == 1 else ""
        lines.append(f'clip{clip}.avi,"{CAPTIONS[clip]}",voice{clip}.wav,{pose}')
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


def followed(columns: str, fields: list[str]) -> Callable[[Path], None]:
    """Videos and a table of what each follows: further columns, and their fields in each row."""
    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        lines = [f"video,prompt,{columns}"]
        for clip in range(3):
            write_avi(folder / f"clip{clip}.avi", [picture(clip, frame) for frame in range(FRAMES)])
            lines.append(f'clip{clip}.avi,"{CAPTIONS[clip]}",{fields[clip]}')
        write_png(folder / "start.png", picture(1, 5))
        (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return make


FOLLOWED = {
    "guides": followed("vace_video,vace_video_mask,vace_reference_image",
                       ["clip1.avi,,", "clip2.avi,clip0.avi,start.png", ",,start.png"]),
    "controls": followed("control_video,reference_image", ["clip1.avi,", ",start.png", "clip0.avi,start.png"]),
    "cameras": followed("camera_control_direction,camera_control_speed", ["LeftUp,0.1", "In,", ","]),
    "drivers": followed("pose,animate_face_video,reference_image",
                        ["clip1.avi,clip2.avi,", "clip2.avi,clip0.avi,start.png", "clip0.avi,clip1.avi,"]),
}


def mixed(folder: Path) -> None:
    """Clips of two shapes and single pictures, for several buckets."""
    folder.mkdir(parents=True)
    for clip, (height, width) in enumerate([(32, 48), (48, 32), (32, 48)]):
        write_avi(folder / f"clip{clip}.avi", [picture(clip, frame, height, width) for frame in range(FRAMES)], height,
                  width)
        (folder / f"clip{clip}.txt").write_text(CAPTIONS[clip])
    for still in range(2):
        write_png(folder / f"still{still}.png", picture(still, 3))
        (folder / f"still{still}.txt").write_text(f"a picture, number {still}")


def make_all(folder: Path) -> None:
    for make, name in ((frame_folders, "frames"), (table, "table"), (spoken, "spoken"), (mixed, "mixed")):
        make(folder / name)
    for name, make in FOLLOWED.items():
        make(folder / name)
    autoencoder.make(folder / "wan21", patch=1)
    autoencoder.make(folder / "wan22", patch=2)
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (TIME_OF_CHANGE, TIME_OF_CHANGE))
