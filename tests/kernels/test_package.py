"""The kernels' package stands in nobody's way, and nobody needs triton."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.import_utils import is_kernels_available

from tests.kernels.table import ROOT

PROBE = """
from transformers.utils.import_utils import is_kernels_available
print(is_kernels_available())
"""
WITHOUT_TRITON = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())

import torch
from typer.testing import CliRunner
from gradian.cli.main import app
from gradian.errors import OpUnavailableError
from gradian.ops._dispatch import OPS
from gradian.ops.cross_entropy import cross_entropy

print(CliRunner().invoke(app, ["doctor"], catch_exceptions=False).stdout)
print("backend:", OPS["cross_entropy"].backend(torch.device("cuda"), torch.bfloat16))
logits, targets = torch.zeros(2, 4), torch.tensor([0, 3])
print("loss:", cross_entropy(logits, targets).tolist() == [torch.tensor(4.0).log().item()] * 2)
try:
    cross_entropy(logits, targets, impl="triton")
except OpUnavailableError as error:
    print("refused:", error)
"""


def run_python(code: str, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_transformers_finds_no_package_of_kernels_in_the_repository(tmp_path: Path) -> None:
    # A folder without __init__.py, which gives way to an installed package of the name and has no file.
    found = PathFinder.find_spec("kernels", [str(ROOT)])
    assert found is None or found.origin is None
    # As pytest puts it there, before anything imports transformers.
    assert str(ROOT) in sys.path
    elsewhere = run_python(PROBE, tmp_path)
    assert f"{is_kernels_available()}\n" == elsewhere
    config = LlamaConfig(
        hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=11
    )
    model = LlamaForCausalLM(config)
    ids = torch.arange(6)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_without_triton_doctor_says_so_and_operations_run_their_references(tmp_path: Path) -> None:
    said = run_python(WITHOUT_TRITON, tmp_path)
    reason = "gradian.kernels cannot be imported (No module named 'triton')"
    assert reason in said.partition("backend:")[0]
    assert "backend: reference" in said
    assert "loss: True" in said
    assert "No module named 'triton'" in said.partition("refused:")[2]
