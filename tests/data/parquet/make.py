#!/usr/bin/env python3
"""Writes the .parquet files beside it, by pyarrow: parquet/make.py"""
import pathlib
import struct
import zlib

import pyarrow as pa
import pyarrow.parquet as pq

folder = pathlib.Path(__file__).parent
nan = float("nan")
clips = pa.table({
    "path": pa.array(["a.mp4", "b.mp4", "c.mp4", "d.png", "e.mp4"], pa.large_string()),
    "text": pa.array(["a cat", "a dog", "a cat", None, 'one "cat", two\nlines'], pa.string()).dictionary_encode(),
    "num_frames": pa.array([51, 102, 204, 1, None], pa.int64()),
    "height": pa.array([240, 360, 480, 720, 144], pa.int32()),
    "width": pa.array([426, 640, 854, 1280, 256], pa.uint16()),
    "fps": pa.array([24, 29.97, 16, nan, None], pa.float32()),
    "aspect_ratio": pa.array([0.5625, 0.5633802816901409, 0.562, 0.5625, 0.5625], pa.float64()),
    "motion score": pa.array([5.1, None, 0, nan, 1e-7], pa.float64()),
    "kept": pa.array([True, False, None, True, True]),
    "captions": pa.array([["one", "two"], [], None, ["three"], ["four", None]], pa.list_(pa.string())),
    "embedding": pa.array([[0.5, 1]] * 5, pa.list_(pa.float32())),
    "clip": pa.array([{"bytes": b"x"}] * 5, pa.struct([("bytes", pa.binary())])),
})
pq.write_table(clips, folder / "groups.parquet", row_group_size=2, compression="snappy")
pq.write_table(clips.select(["path", "text", "fps"]), folder / "zstd.parquet", compression="zstd", use_dictionary=False)
pq.write_table(pa.table({"path": pa.nulls(1_000_000, pa.string())}), folder / "nothing.parquet")
pq.write_table(clips.select(["embedding"]), folder / "numbers.parquet")


def png(number):
    """A picture of 8 x 6 pixels of one colour, another for each number."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = (b"\0" + bytes([50 * number, 255 - 50 * number, 100]) * 8) * 6
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 6, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


# As datasets writes its Image feature: Parquet of push_to_hub, Arrow of save_to_disk.
image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
pictures = pa.table({
    "image": pa.array([{"bytes": png(i), "path": None if i == 3 else f"picture {i}.png"} for i in range(5)], image),
    "text": [f"picture number {i}" for i in range(5)],
    "label": [0, 1, 0, 1, 0],
})
(folder / "hub/data").mkdir(parents=True, exist_ok=True)
pq.write_table(pictures.slice(0, 3), folder / "hub/data/train-00000-of-00002.parquet", row_group_size=2)
pq.write_table(pictures.slice(3), folder / "hub/data/train-00001-of-00002.parquet", row_group_size=2)
pq.write_table(pictures.slice(0, 1), folder / "hub/data/test-00000-of-00001.parquet")
pq.write_table(pictures.set_column(0, "image", pa.array([{"bytes": None, "path": f"{i}.png"} for i in range(5)], image)),
               folder / "paths.parquet")
(folder / "saved").mkdir(exist_ok=True)
with pa.ipc.new_stream(str(folder / "saved/data-00000-of-00001.arrow"), pictures.schema) as stream:
    stream.write_table(pictures, max_chunksize=2)
for name, text in (("state.json", '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": "train"}'),
                   ("dataset_info.json", '{"features": {"image": {"_type": "Image"}}}')):
    (folder / "saved" / name).write_text(text + "\n")
