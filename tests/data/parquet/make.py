#!/usr/bin/env python3
"""Writes the .parquet files beside it, by pyarrow: parquet/make.py"""
import pathlib
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
