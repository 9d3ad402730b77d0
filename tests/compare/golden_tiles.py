"""Tiles of an image autoencoder that are not square: the program codes the tiles one by one, plain code stitches them, and the
program has to come to the same with its own tiles."""
import json
import random
import shutil
from pathlib import Path

from golden_files import Case, Tensor, f32, read, write

KIND = "dc_ae_tiled"
CELL = 32  # pixels of a latent cell
ANYTHING = {"out": {"rtol_of_max": 0.0, "atol": 1e30}}  # of a case whose results are wanted, not compared


class Map:
    """[channels, height, width] as rows of numbers."""

    def __init__(self, channels: int, height: int, width: int, values: list):
        self.shape, self.values = (channels, height, width), values

    def at(self, c: int, y: int, x: int) -> float:
        return self.values[(c * self.shape[1] + y) * self.shape[2] + x]

    def cut(self, y: int, x: int, height: int, width: int) -> "Map":
        height, width = min(height, self.shape[1] - y), min(width, self.shape[2] - x)
        values = []
        for c in range(self.shape[0]):
            for row in range(y, y + height):
                begin = (c * self.shape[1] + row) * self.shape[2] + x
                values += self.values[begin:begin + width]
        return Map(self.shape[0], height, width, values)

    def tensor(self) -> Tensor:
        return Tensor([1, *self.shape], self.values)


def code(verify, source: Path, config: dict, folder: Path, given: str, wanted: str, tiles: list, shape_of) -> list:
    """What the program makes of each of these tiles without tiling."""
    case = Case(KIND, config, tolerance=ANYTHING)
    for i, tile in enumerate(tiles):
        shape = shape_of(tile)
        case.inputs[f"in.{given}_{i}"] = tile.tensor()
        case.expected[f"out.{wanted}_{i}"] = Tensor([1, *shape], [0.0] * (shape[0] * shape[1] * shape[2]))
    shutil.copy(source / "model.safetensors", write(case, folder))
    code, output = verify("--write", folder / "written", folder)
    if code != 0:
        raise RuntimeError(f"{folder}: coding tiles ended with {code}\n{output}")
    found = read(folder / "written" / folder.name / "case.safetensors")
    return [Map(*found[f"out.{wanted}_{i}"].shape[1:], found[f"out.{wanted}_{i}"].values) for i in range(len(tiles))]


def blend(before: Map, tile: Map, count: int, down: bool) -> None:
    """Over the first rows (or columns) of a tile, from the last ones of the one before it."""
    side = 1 if down else 2
    count = min(count, before.shape[side], tile.shape[side])
    for c in range(tile.shape[0]):
        for k in range(count):
            for other in range(min(before.shape[3 - side], tile.shape[3 - side])):
                y, x = (k, other) if down else (other, k)
                from_y, from_x = (before.shape[1] - count + k, other) if down else (other, before.shape[2] - count + k)
                at = (c * tile.shape[1] + y) * tile.shape[2] + x
                tile.values[at] = before.at(c, from_y, from_x) * (1 - k / count) + tile.values[at] * (k / count)


def stitched(rows: list, channels: int, shared: tuple, kept: tuple, height: int, width: int) -> Map:
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            if i > 0:
                blend(rows[i - 1][j], tile, shared[0], down=True)
            if j > 0:
                blend(row[j - 1], tile, shared[1], down=False)
    result = Map(channels, height, width, [0.0] * (channels * height * width))
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            for c in range(channels):
                for y in range(min(kept[0], tile.shape[1])):
                    for x in range(min(kept[1], tile.shape[2])):
                        at = (c * height + i * kept[0] + y) * width + j * kept[1] + x
                        result.values[at] = tile.at(c, y, x)
    return result


def check_one(verify, source: Path, root: Path, draw: random.Random) -> str:
    config = json.loads((source / "config.json").read_text())
    config.pop("_tiling", None)
    latent_channels = config["latent_channels"]
    cells = [draw.randrange(2, 4), draw.randrange(2, 5)]         # of a tile
    steps = [draw.randrange(1, side + 1) for side in cells]      # from one tile to the next
    grid = [side + draw.randrange(1, 4) for side in cells]       # of the picture
    height, width = CELL * grid[0], CELL * grid[1]
    image = Map(3, height, width, [f32(draw.uniform(-1, 1)) for _ in range(3 * height * width)])
    latent = Map(latent_channels, *grid, [f32(draw.gauss(0, 1)) for _ in range(latent_channels * grid[0] * grid[1])])
    corners = [[(y, x) for x in range(0, grid[1], steps[1])] for y in range(0, grid[0], steps[0])]
    flat = [corner for row in corners for corner in row]

    def in_rows(tiles):
        return [[tiles.pop(0) for _ in row] for row in corners]

    overlap = [side - step for side, step in zip(cells, steps)]
    encoded = code(verify, source, config, root / "encoded", "image", "latent",
                   [image.cut(CELL * y, CELL * x, CELL * cells[0], CELL * cells[1]) for y, x in flat],
                   lambda tile: (latent_channels, tile.shape[1] // CELL, tile.shape[2] // CELL))
    decoded = code(verify, source, config, root / "decoded", "z", "decoded",
                   [latent.cut(y, x, *cells) for y, x in flat], lambda tile: (3, tile.shape[1] * CELL, tile.shape[2] * CELL))
    config["_tiling"] = {"tile_sample_min_height": CELL * cells[0], "tile_sample_min_width": CELL * cells[1],
                         "tile_sample_stride_height": CELL * steps[0], "tile_sample_stride_width": CELL * steps[1]}
    whole = Case(KIND, config, {"in.image": image.tensor(), "in.z": latent.tensor()},
                 tolerance={"out": {"rtol_of_max": 1e-5, "atol": 1e-6}})
    whole.expected["out.latent"] = stitched(in_rows(encoded), latent_channels, overlap, steps, *grid).tensor()
    pixels = [[CELL * n for n in both] for both in (overlap, steps)]
    whole.expected["out.decoded"] = stitched(in_rows(decoded), 3, *pixels, height, width).tensor()
    folder = write(whole, root / "whole")
    shutil.copy(source / "model.safetensors", folder)
    code_of, output = verify(folder)
    return "" if code_of == 0 and "not compared" not in output else f"{config['_tiling']} of {height}x{width}\n{output}"


def check(verify, source: Path, root: Path, seed: str, count: int) -> list:
    faults = [check_one(verify, source, root / f"{KIND}-{i}", random.Random(f"{seed} {i}")) for i in range(count)]
    return [fault for fault in faults if fault]
