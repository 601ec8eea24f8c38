"""What projections and float16 cost in ranking fidelity, and what they save on disk, on the demo's run.

    python experiments/projection_fidelity.py --demo runs/demo --out runs/projection

The demo's exact index (float32, nothing projected) is read back, and each variant is written from it through the
same projection, the same cast and the same writer that `gradian index` uses; the query gradients are projected
alike. So the model runs for the queries only, and every difference in the scores is the variant's. Reported for
each: bytes on disk, Spearman correlation of its scores with the exact ones (the average query, and the mean over
the items' own queries), and the AUC of planted against clean rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradian.api import with_settings
from gradian.attribution import items_to_explain
from gradian.config import GradsConfig, load_config
from gradian.data.formats import load_dataset
from gradian.demo.dataset import PLANTED_CLUSTER
from gradian.demo.files import DemoFiles
from gradian.demo.run import auc_of_lowest
from gradian.engines import EngineSettings
from gradian.evaluation.capability import measure_capability
from gradian.grads.projection import project_blocks, projected_specs
from gradian.progress import NullProgress
from gradian.query.contrastive import item_queries, resolve_signal, with_average
from gradian.query.scorer import QueryGradients, rank_correlation, score_index
from gradian.session import Session
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from gradian.types import BlockSpec, FloatArray

ENGINES = ["datainf", "graddot"]
WIDTHS = (512, 2048, 8192)
STORED = {"float32": np.float32, "float16": np.float16}


def variants(widths: Sequence[int]) -> list[GradsConfig]:
    """Return the gradient settings that are compared; the exact ones come first."""
    projected = [
        GradsConfig(projection_dim=width, projection_kind=kind)
        for kind in ("countsketch", "rademacher")
        for width in widths
    ]
    return [GradsConfig(), GradsConfig(storage_dtype="float16"), *projected]


def write_variant(exact: IndexReader, grads: GradsConfig, cache: Path) -> IndexReader:
    """Write an exact index once more under other settings.

    Args:
        exact: an index without projection, float32.
        grads: projection and storage number format.
        cache: where it goes.
    """
    inputs = {"exact": exact.id, "grads": grads.model_dump(mode="json")}
    specs = projected_specs(exact.blocks, grads.projection_dim)
    chunk_size = exact.manifest.chunk_size
    with open_writer(str(cache), inputs, specs, exact.n, grads.storage_dtype, chunk_size) as writer:
        for number in writer.pending:
            span = writer.chunk_rows(number)
            rows = np.arange(span.start, span.stop, dtype=np.int64)
            with writer.chunk(number) as chunk:
                for block, spec in enumerate(exact.blocks):
                    tile = next(values for first, values in exact.tiles(block) if first == span.start)
                    projected = project_blocks([torch.from_numpy(tile)], [spec], grads)[0]
                    chunk.write_block(block, rows, projected.numpy().astype(STORED[grads.storage_dtype]))
                chunk.write_examples(rows, exact.loss[rows], exact.supervised_tokens[rows])
        return writer.finish({})


def project_queries(
    queries: QueryGradients, specs: Sequence[BlockSpec], grads: GradsConfig
) -> QueryGradients:
    """Return the queries projected as the variant's rows are."""
    return QueryGradients(queries.ids, tuple(project_blocks(list(queries.blocks), specs, grads)))


def stored_bytes(index: IndexReader) -> int:
    """Return the bytes of all files of an index."""
    return sum(file.stat().st_size for file in index.path.rglob("*") if file.is_file())


def mean_correlation(first: FloatArray, second: FloatArray) -> float:
    """Return the mean Spearman correlation of the rows of two score tables [m, n]."""
    found = [rank_correlation(a, b) for a, b in zip(first, second, strict=True)]
    return float(np.mean([value for value in found if value is not None]))


def main() -> None:
    """Run the experiment and print and write its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--demo", type=Path, default=Path("runs/demo"), help="folder that `gradian demo` made"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/projection"))
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    arguments = parser.parse_args()
    config = load_config(DemoFiles(arguments.demo).config)
    exact_settings = {"projection_dim": None, "storage_dtype": "float32"}
    session = Session(with_settings(config, {"grads": exact_settings}), NullProgress())
    evals = load_dataset(config.eval_dataset or "").examples
    measured = measure_capability(session.loaded, evals, config, "capitals")
    exact = session.index()
    items = items_to_explain(measured, evals, session.dataset.examples)
    signal = resolve_signal(config.evaluation.query_signal, items)
    each = item_queries(session.collector, session.encoder, items, signal)
    queries = with_average(each, [block.mean(dim=0) for block in each.blocks], "average")
    planted = np.array([example.cluster == PLANTED_CLUSTER for example in session.dataset.examples])
    settings = EngineSettings(config.engine.lambda_scale)
    truth: dict[str, FloatArray] = {}
    table: list[dict[str, Any]] = []
    print(
        "| projection | width | stored as | bytes | of exact | engine | Spearman, average | mean of items | AUC |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for grads in variants(arguments.widths):
        index = write_variant(exact, grads, arguments.out / "cache")
        scored = score_index(index, project_queries(queries, exact.blocks, grads), ENGINES, settings)
        size = stored_bytes(index)
        for engine in ENGINES:
            values = scored[engine].values
            base = truth.setdefault(engine, values)
            row = {
                "projection": grads.projection_kind if grads.projection_dim else "none",
                "width": grads.projection_dim,
                "storage_dtype": grads.storage_dtype,
                "bytes": size,
                "of_exact": size / (table[0]["bytes"] if table else size),
                "engine": engine,
                "spearman_average": rank_correlation(values[0], base[0]),
                "spearman_items": mean_correlation(values[1:], base[1:]),
                "auc": auc_of_lowest(values[0], planted),
            }
            table.append(row)
            print(
                f"| {row['projection']} | {row['width'] or ''} | {row['storage_dtype']} | {size:,} |"
                f" {row['of_exact']:.3f} | {engine} | {row['spearman_average']:.4f} |"
                f" {row['spearman_items']:.4f} | {row['auc']:.3f} |",
                flush=True,
            )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "projection_fidelity.json").write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
