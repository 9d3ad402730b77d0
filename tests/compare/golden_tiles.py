"""Tiles of autoencoders that are not square, of other sizes and overlaps than the published ones: the program codes the tiles
one by one, plain code stitches them, and the program has to come to the same with its own tiles."""
import itertools
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from golden_files import Case, Tensor, f32, read, write

ANYTHING = {"out": {"rtol_of_max": 0.0, "atol": 1e30}}  # of a case whose results are wanted, not compared
FRAMES, ROWS, COLUMNS = 1, 2, 3


class Map:
    """[channels, frames, height, width] as a list of numbers."""

    def __init__(self, shape: list, values: list):
        self.shape, self.values = list(shape), values

    def at(self, *place) -> int:
        where = 0
        for n, i in zip(self.shape, place):
            where = where * n + i
        return where

    def cut(self, *ranges) -> "Map":
        """(begin, count) of frames, rows and columns; what is not there is left out."""
        spans = [range(self.shape[0])]
        spans += [range(begin, min(begin + count, n)) for (begin, count), n in zip(ranges, self.shape[1:])]
        return Map([len(span) for span in spans], [self.values[self.at(*place)] for place in itertools.product(*spans)])


def noise(draw: random.Random, shape: list) -> Map:
    count = shape[0] * shape[1] * shape[2] * shape[3]
    return Map(shape, [f32(draw.uniform(-1, 1)) for _ in range(count)])


def blend(before: Map, tile: Map, count: int, axis: int) -> None:
    """Over the first places of a tile along the axis, from the last ones of the one before it."""
    count = min(count, before.shape[axis], tile.shape[axis])
    spans = [range(min(a, b)) for a, b in zip(before.shape, tile.shape)]
    spans[axis] = range(count)
    for place in itertools.product(*spans):
        from_place, k = list(place), place[axis]
        from_place[axis] += before.shape[axis] - count
        at = tile.at(*place)
        tile.values[at] = before.values[before.at(*from_place)] * (1 - k / count) + tile.values[at] * (k / count)


@dataclass
class Tiles:
    """Along frames, rows and columns: the size of a tile and the step to the next one, where it is cut and where it comes out;
    `most`: sides up to which nothing is cut. Frames of 0: never cut."""
    size: tuple
    step: tuple
    shared: tuple  # of the results of neighbours
    kept: tuple    # of each result
    result: object  # sides -> sides of the result

    def pieces(self, source: Map) -> list:
        """In the order in which they are coded: for each piece in time the ranges of its tiles in rows."""
        sides = source.shape[1:]
        times = [(0, sides[0])]
        if self.size[0] and sides[0] > self.size[0]:
            times = [(t, self.size[0] + 1) for t in range(0, sides[0], self.step[0])]
        spaces = [[((0, sides[1]), (0, sides[2]))]]
        if sides[1] > self.size[1] or sides[2] > self.size[2]:
            spaces = [[((y, self.size[1]), (x, self.size[2])) for x in range(0, sides[2], self.step[2])]
                      for y in range(0, sides[1], self.step[1])]
        return [[[(time, *space) for space in row] for row in spaces] for time in times]

    def stitched(self, source: Map, coded: list) -> Map:
        """`coded`: of all tiles, in the order of pieces()."""
        coded, whole = iter(coded), self.result(source.shape[1:])
        parts = []
        for rows in self.pieces(source):
            tiles = [[next(coded) for _ in row] for row in rows]
            parts.append(self.in_space(tiles, whole))
        for i, part in enumerate(parts):
            if i == 0:
                continue
            part = parts[i] = part.cut((1, part.shape[1]), (0, whole[1]), (0, whole[2])) if part.shape[1] > 1 else None
            if part:
                blend(parts[i - 1], part, self.shared[0], FRAMES)
        parts = [part for part in parts if part]
        if len(parts) > 1 or self.size[0] and source.shape[1] > self.size[0]:
            parts = [part.cut((0, self.kept[0] + (i == 0)), (0, whole[1]), (0, whole[2])) for i, part in enumerate(parts)]
        return joined(parts, FRAMES).cut((0, whole[0]), (0, whole[1]), (0, whole[2]))

    def in_space(self, tiles: list, whole: list) -> Map:
        if len(tiles) == 1 and len(tiles[0]) == 1:
            return tiles[0][0]
        for i, j in itertools.product(range(len(tiles)), range(len(tiles[0]))):
            if i > 0:
                blend(tiles[i - 1][j], tiles[i][j], self.shared[1], ROWS)
            if j > 0:
                blend(tiles[i][j - 1], tiles[i][j], self.shared[2], COLUMNS)
        frames = tiles[0][0].shape[1]
        rows = [joined([tile.cut((0, frames), (0, self.kept[1]), (0, self.kept[2])) for tile in row], COLUMNS) for row in tiles]
        return joined(rows, ROWS).cut((0, frames), (0, whole[1]), (0, whole[2]))


def joined(parts: list, axis: int) -> Map:
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    result, begin = Map(shape, [0.0] * (shape[0] * shape[1] * shape[2] * shape[3])), 0
    for part in parts:
        for place in itertools.product(*(range(n) for n in part.shape)):
            to = list(place)
            to[axis] += begin
            result.values[result.at(*to)] = part.values[part.at(*place)]
        begin += part.shape[axis]
    return result


def both_ways(size: tuple, step: tuple, cell: int) -> tuple:
    """Of encoding and decoding, where a latent cell is `cell` pixels and a latent frame four frames."""
    parts = (4, cell, cell)
    small, steps = (tuple(n // part for n, part in zip(of, parts)) for of in (size, step))
    encode = Tiles(size, step, tuple(a - b for a, b in zip(small, steps)), steps,
                   lambda sides: [(sides[0] - 1) // 4 + 1, sides[1] // cell, sides[2] // cell])
    decode = Tiles(small, steps, tuple(a - b for a, b in zip(size, step)), step,
                   lambda sides: [4 * (sides[0] - 1) + 1, sides[1] * cell, sides[2] * cell])
    return encode, decode


class Program:
    """Codes tiles with the weights of a recorded case."""

    def __init__(self, verify, source: Path, root: Path):
        self.verify, self.source, self.root = verify, source, root
        self.config = json.loads((source / "config.json").read_text())

    def written(self, cases: list, name: str) -> list:
        """What the program computes for each case."""
        folders, results = [], self.root / name / "written"
        for i, case in enumerate(cases):
            folders.append(write(case, self.root / name / str(i)))
            shutil.copy(self.source / "model.safetensors", folders[-1])
        code, output = self.verify("--write", results, *folders)
        if code != 0:
            raise RuntimeError(f"{folders[0]}: coding tiles ended with {code}\n{output}")
        return [read(results / folder.name / "case.safetensors") for folder in folders]

    def fault(self, case: Case, about: object) -> str:
        folder = write(case, self.root / "whole")
        shutil.copy(self.source / "model.safetensors", folder)
        code, output = self.verify(folder)
        return "" if code == 0 and "not compared" not in output else f"{about} ended with {code}\n{output}"


def put(case: Case, name: str, tile: Map) -> None:
    """Pictures have no frames."""
    pictures = case.kind == "dc_ae_tiled"
    case.inputs[name] = Tensor([1, tile.shape[0], *tile.shape[2:]] if pictures else [1, *tile.shape], tile.values)


def want(case: Case, name: str, channels: int, sides: list) -> None:
    shape = [channels, *(sides[1:] if case.kind == "dc_ae_tiled" else sides)]
    case.expected[name] = Tensor([1, *shape], [0.0] * (shape[0] * shape[1] * shape[2] * (shape[3] if len(shape) > 3 else 1)))


def found_in(results: dict, name: str, frames: bool = True) -> Map:
    shape = results[name].shape[1:]
    return Map(shape if frames else [shape[0], 1, *shape[1:]], results[name].values)


def dc_ae(program: Program, draw: random.Random) -> str:
    cell, channels = 32, program.config["latent_channels"]
    program.config.pop("_tiling", None)
    cells = [draw.randrange(2, 4), draw.randrange(2, 5)]
    steps = [draw.randrange(1, side + 1) for side in cells]
    grid = [side + draw.randrange(1, 4) for side in cells]
    size, step = (tuple([0] + [cell * n for n in of]) for of in (cells, steps))
    whole = Case("dc_ae_tiled", {**program.config, "_tiling": {
        "tile_sample_min_height": size[1], "tile_sample_min_width": size[2], "tile_sample_stride_height": step[1],
        "tile_sample_stride_width": step[2]}}, tolerance={"out": {"rtol_of_max": 1e-5, "atol": 1e-6}})
    sources = noise(draw, [3, 1, *(cell * n for n in grid)]), noise(draw, [channels, 1, *grid])
    names = ("image", "latent", channels), ("z", "decoded", 3)
    for source, tiles, (given, wanted, out) in zip(sources, both_ways(size, step, cell), names):
        case = Case("dc_ae_tiled", program.config, tolerance=ANYTHING)
        flat = [source.cut(*tile) for rows in tiles.pieces(source) for row in rows for tile in row]
        for i, tile in enumerate(flat):
            put(case, f"in.{given}_{i}", tile)
            want(case, f"out.{wanted}_{i}", out, tiles.result(tile.shape[1:]))
        results = program.written([case], given)[0]
        stitched = tiles.stitched(source, [found_in(results, f"out.{wanted}_{i}", frames=False) for i in range(len(flat))])
        put(whole, "in." + given, source)
        whole.expected["out." + wanted] = Tensor([1, stitched.shape[0], *stitched.shape[2:]], stitched.values)
    return program.fault(whole, whole.config["_tiling"])


def video_sides(draw: random.Random, size: tuple, longest: int) -> list:
    """Some beyond a tile, some within."""
    frames = 4 * draw.choice([1, size[0] // 4 + 1, size[0] // 4 + draw.randrange(1, longest)]) + 1
    return [frames, *(8 * draw.randrange(1, n // 8 + 3) for n in size[1:])]


def hunyuan(program: Program, draw: random.Random) -> str:
    cell, channels = 8, program.config["latent_channels"]
    program.config.pop("_tiling", None)
    size = (4 * draw.randrange(2, 5), cell * draw.randrange(2, 5), cell * draw.randrange(2, 5))
    step = tuple(part * draw.randrange(1, n // part + 1) for n, part in zip(size, (4, cell, cell)))
    tiling = {"tile_sample_min_height": size[1], "tile_sample_min_width": size[2], "tile_sample_stride_height": step[1],
              "tile_sample_stride_width": step[2], "tile_sample_min_num_frames": size[0], "tile_sample_stride_num_frames": step[0]}
    whole = Case("hunyuan_vae_tiled", {**program.config, "_tiling": tiling},
                 tolerance={"out": {"rtol_of_max": 1e-4, "atol": 1e-6}})
    encode, decode = both_ways(size, step, cell)
    video = noise(draw, [3, *video_sides(draw, size, 3)])
    latent = noise(draw, [channels, *encode.result(video_sides(draw, size, 3))])
    for source, tiles, given, untiled, wanted, out in ((video, encode, "video", "untiled_moments", "moments", 2 * channels),
                                                       (latent, decode, "small_z", "untiled_decoded", "decoded", 3)):
        cases = []
        for ranges in (tile for rows in tiles.pieces(source) for row in rows for tile in row):
            cases.append(Case("hunyuan_vae_tiled", program.config, tolerance=ANYTHING))
            tile = source.cut(*ranges)
            put(cases[-1], "in." + given, tile)
            want(cases[-1], "out." + untiled, out, tiles.result(tile.shape[1:]))
        coded = [found_in(results, "out." + untiled) for results in program.written(cases, given)]
        put(whole, "in.video" if given == "video" else "in.z", source)
        stitched = tiles.stitched(source, coded)
        whole.expected["out." + wanted] = Tensor([1, *stitched.shape], stitched.values)
    return program.fault(whole, tiling)


def opensora(program: Program, draw: random.Random) -> str:
    """2.0's own: one size of tiles and one share that they overlap, in all directions."""
    cell, channels, config = 8, program.config["latent_channels"], program.config
    share, side, frames = draw.choice([(0.25, 4, 4), (0.5, 2, 2), (0.5, 4, 2), (0.5, 6, 4), (0.5, 2, 4)])  # whole cells
    config.update(sample_size=cell * side, sample_tsize=4 * frames, tile_overlap_factor=share, cases={})
    side, frames, share = config["sample_size"], config["sample_tsize"], config["tile_overlap_factor"]
    in_space, in_time = draw.choice([(True, True), (True, False), (False, True)])
    size = (frames if in_time else 0, *([side if in_space else 10 ** 6] * 2))
    step = tuple(int(n * (1 - share)) for n in (frames, side, side))
    encode, decode = both_ways(size, step, cell)
    for tiles, parts in ((encode, (frames // 4, side // cell, side // cell)), (decode, (frames, side, side))):
        tiles.shared = tuple(int(n * share) for n in parts)
        tiles.kept = tuple(n - both for n, both in zip(parts, tiles.shared))
    decode.step = tuple(int(n * (1 - share)) for n in (frames // 4, side // cell, side // cell))
    sides = (frames, side, side)
    video = noise(draw, [3, *video_sides(draw, sides, 3)])
    latent = noise(draw, [channels, *encode.result(video_sides(draw, sides, 3))])
    case, count = Case("opensora_vae_tiling", config, tolerance=ANYTHING), {}
    for source, tiles, given, wanted, out in ((video, encode, "video", "moments", 2 * channels), (latent, decode, "latent", "decoded", 3)):
        flat = [source.cut(*tile) for rows in tiles.pieces(source) for row in rows for tile in row]
        count[given] = len(flat)
        for i, tile in enumerate(flat):
            put(case, f"in.{given}{i}", tile)
            config["cases"].setdefault(f"c{i}", {"spatial": False, "temporal": False})[given] = f"{given}{i}"
            want(case, f"out.c{i}.{wanted}", out, tiles.result(tile.shape[1:]))
    for i, one in enumerate(config["cases"].values()):  # a case has both
        for given in ("video", "latent"):
            one.setdefault(given, given + "0")
    results = program.written([case], "tiles")[0]
    whole = Case("opensora_vae_tiling", {**config, "cases": {"whole": {
        "video": "video", "latent": "latent", "spatial": in_space, "temporal": in_time}}},
        tolerance={"out": {"rtol_of_max": 1e-4, "atol": 1e-6}})
    for source, tiles, given, wanted in ((video, encode, "video", "moments"), (latent, decode, "latent", "decoded")):
        put(whole, "in." + given, source)
        stitched = tiles.stitched(source, [found_in(results, f"out.c{i}.{wanted}") for i in range(count[given])])
        whole.expected["out.whole." + wanted] = Tensor([1, *stitched.shape], stitched.values)
    return program.fault(whole, {key: config[key] for key in ("sample_size", "sample_tsize", "tile_overlap_factor")})


KINDS = {"dc_ae_tiled": dc_ae, "hunyuan_vae_tiled": hunyuan, "opensora_vae_tiling": opensora}


def check(kind: str, verify, source: Path, root: Path, seed: str, count: int) -> list:
    faults = []
    for i in range(count):
        faults.append(KINDS[kind](Program(verify, source, root / f"{kind}-{i}"), random.Random(f"{seed} {i}")))
    return [fault for fault in faults if fault]
