"""Canaries: something that would leave a trace if it ran, in every place of an audit's inputs that could run.

`python -m tests.stress.canaries` plants them one at a time into copies of a tiny trained run and lets `gradian diagnose`
and `gradian attribute` read them, as the installed command would, under the audit hook of `watched.py`. None may fire,
the hook may have nothing to report, and the command ends with its result or with a typed error, in bounded time.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stress.serving import Server

SECONDS = 45.0
"""Longest that one command may take, however hostile its input."""
DONE, USER_ERROR = 0, 2


@dataclass(frozen=True)
class Case:
    """One copy of the run, and where a canary that fires leaves its trace."""

    folder: Path
    slot: str

    @property
    def nest(self) -> Path:
        return self.folder / "nest"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def checkpoint(self) -> Path:
        return self.run / "checkpoint-10"

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def adapter(self) -> Path:
        return self.folder / "adapter"

    @property
    def cwd(self) -> Path:
        return self.folder / "cwd"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def train(self) -> Path:
        return self.data / "train.jsonl"

    @property
    def config(self) -> Path:
        return self.folder / "config" / "gradian.yaml"

    @property
    def untrusted(self) -> list[Path]:
        return [self.run, self.base, self.adapter, self.cwd, self.data, self.config.parent]

    @property
    def trace(self) -> Path:
        return self.nest / "fired"

    @property
    def code(self) -> str:
        """Python source that leaves the trace."""
        return f"import os\nos.makedirs({str(self.trace)!r}, exist_ok=True)\n"

    def edit_json(self, path: Path, **values: Any) -> None:
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps({**data, **values}), encoding="utf-8")


class Bomb:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def pickles(case: Case) -> dict[str, bytes]:
    """Pickle streams that leave the trace when they are loaded, by how."""
    trace, shell = str(case.trace), f"mkdir {case.trace}"
    named = {
        "os.system": Bomb(os.system, shell),
        "subprocess": Bomb(subprocess.Popen, ["mkdir", trace]),
        "exec": Bomb(exec, case.code),
        "eval": Bomb(eval, f"__import__('os').mkdir({trace!r})"),
        "mkdir": Bomb(os.mkdir, trace),
        "in state": {"learning_rate": 1e-4, "per_device_train_batch_size": Bomb(os.mkdir, trace)},
    }
    made = {f"{name}, protocol {p}": pickle.dumps(bomb, p) for name, bomb in named.items() for p in (0, 2, 4)}
    text = trace.encode()
    # By hand: opcodes and names that Python's own pickler does not write.
    made |= {
        "INST": b"(S'" + text + b"'\nios\nmkdir\n.",
        "OBJ": b"(cos\nmkdir\nS'" + text + b"'\no.",
        "getattr": b"cbuiltins\ngetattr\n(cos\nsys\nS'modules'\ntR.",
        "import": b"cantigravity\nfly\n.",
        "dotted": b"\x80\x04\x8c\x02os\x8c\x0cpath.os.mkdir\x93\x8c" + bytes([len(text)]) + text + b"\x85R."
        if len(text) < 256
        else b"",
        "python 2": b'c__builtin__\neval\n(S\'__import__("os").mkdir("' + text + b"\")'\ntR.",
        "PERSID": b"Pos.mkdir\n.",
        "EXT1": b"\x80\x02\x82\x01.",
        "runpy": b"crunpy\n_run_code\n(S'" + case.code.replace("\n", ";").encode() + b"'\n}tR.",
        "codecs": b"c_codecs\nencode\n(S'" + text + b"'\nS'evil'\ntR.",
        "numpy loads": b"cnumpy.testing._private.utils\nrunstring\n(S'import os;os.mkdir(\""
        + text
        + b"\")'\n}tR.",
        "torch": b"ctorch.hub\nload\n(S'evil/evil'\nS'x'\ntR.",
    }
    return {name: data for name, data in made.items() if data}


def zipped(data: bytes, name: str = "archive/data.pkl") -> bytes:
    """The pickle as torch.save packs it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(name, data)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return made.getvalue()


Plant = Callable[[Case], None]
Slot = tuple[str, Plant]


def _arguments(how: str, pack: bool) -> Plant:
    def plant(case: Case) -> None:
        data = pickles(case)[how]
        (case.run / "training_args.bin").write_bytes(zipped(data) if pack else data)

    return plant


def _pickled_file(*places: str) -> Plant:
    def plant(case: Case) -> None:
        data = pickles(case)["exec, protocol 2"]
        for place in places:
            path = case.folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(zipped(data) if path.suffix in (".pt", ".bin", ".pth") else data)

    return plant


def _pickle_slots() -> Iterator[Slot]:
    example = Case(Path("/x"), "x")
    for how in pickles(example):
        yield f"training_args.bin: {how}", _arguments(how, pack=False)
        yield f"training_args.bin, zipped: {how}", _arguments(how, pack=True)
    states = (
        "optimizer.pt",
        "scheduler.pt",
        "scaler.pt",
        "rng_state.pth",
        "random_states_0.pkl",
        "pytorch_model.bin",
    )
    for name in states:
        yield f"run/{name}", _pickled_file(f"run/{name}", f"run/checkpoint-10/{name}")
    yield (
        "pickles with the data",
        _pickled_file(
            "data/train.pkl", "data/cache.joblib", "data/train.jsonl.pkl", "data/state.pt", "cwd/gradian.pkl"
        ),
    )

    def object_array(case: Case) -> None:
        import numpy as np

        array = np.empty(1, dtype=object)
        array[0] = Bomb(exec, case.code)
        for folder in (case.run, case.data, case.base, case.adapter, case.cwd):
            np.save(folder / "rows.npy", array, allow_pickle=True)
            np.savez(folder / "scores.npz", array)

    yield "numpy object arrays", object_array

    def adapter_bin(case: Case) -> None:
        for folder in (case.adapter, case.run):
            (folder / "adapter_model.safetensors").unlink()
            (folder / "adapter_model.bin").write_bytes(zipped(pickles(case)["exec, protocol 2"]))

    yield "adapter_model.bin", adapter_bin

    def adapter_bin_legacy(case: Case) -> None:
        for folder in (case.adapter, case.run):
            (folder / "adapter_model.safetensors").unlink()
            (folder / "adapter_model.bin").write_bytes(pickles(case)["exec, protocol 2"])

    yield "adapter_model.bin, not zipped", adapter_bin_legacy

    def base_bin(case: Case) -> None:
        (case.base / "model.safetensors").unlink()
        (case.base / "pytorch_model.bin").write_bytes(zipped(pickles(case)["exec, protocol 2"]))

    yield "pytorch_model.bin", base_bin

    def base_index(case: Case) -> None:
        (case.base / "model.safetensors").unlink()
        (case.folder / "outside.bin").write_bytes(zipped(pickles(case)["exec, protocol 2"]))
        index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "../outside.bin"}}
        (case.base / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        (case.base / "model.safetensors.index.json").write_text(json.dumps(index))

    yield "a weight map that leads outside", base_index


YAML_TAGS = (
    "!!python/object/apply:os.mkdir ['{trace}']",
    "!!python/object/apply:os.system ['mkdir {trace}']",
    "!!python/object/new:os.mkdir ['{trace}']",
    "!!python/object/apply:subprocess.Popen [['mkdir', '{trace}']]",
    "!!python/object/apply:builtins.exec [\"__import__('os').mkdir('{trace}')\"]",
    "!!python/module:antigravity ''",
    "!!python/name:os.system ''",
    "!!python/object:subprocess.Popen {{args: 'mkdir {trace}', shell: true}}",
    "!<tag:yaml.org,2002:python/object/apply:os.mkdir> ['{trace}']",
    '!!python/object/new:type {{args: ["z", !!python/tuple [], {{"extend": !!python/name:exec }}], listitems: "__import__(\'os\')"}}',
)


def _yaml_slots() -> Iterator[Slot]:
    def plant_with(number: int, where: str) -> Plant:
        def plant(case: Case) -> None:
            value = YAML_TAGS[number].format(trace=case.trace)
            text = f"base_model: x\ndatasets: [{{path: x}}]\nlearning_rate: {value}\nlora_r: 8\n"
            if where == "config":
                case.config.write_text(case.config.read_text() + f"seed: {value}\n")
            elif where == "folder":
                for name in (
                    "config.yaml",
                    "axolotl.yml",
                    "llamafactory.yaml",
                    "training_args.yaml",
                    "args.yaml",
                ):
                    (case.run / name).write_text(text)
                (case.folder / "axolotl.yaml").write_text(text)
            else:
                card = f"---\nbase_model: {value}\ntags: [axolotl]\n---\naxolotl version: `0.6`\n```yaml\n{text}```\n"
                (case.run / "README.md").write_text(card)
                (case.base / "README.md").write_text(card)

        return plant

    for number in range(len(YAML_TAGS)):
        for where in ("config", "folder", "model card"):
            yield f"YAML tag {number} in the {where}", plant_with(number, where)


TEMPLATES = (
    "{{{{ messages.__class__.__mro__[1].__subclasses__() }}}}",
    "{{{{ self.__init__.__globals__.__builtins__.__import__('os').mkdir('{trace}') }}}}",
    "{{{{ cycler.__init__.__globals__.os.mkdir('{trace}') }}}}",
    "{{{{ lipsum.__globals__['os'].mkdir('{trace}') }}}}",
    "{{{{ joiner.__init__.__globals__.os.system('mkdir {trace}') }}}}",
    "{{{{ namespace.__init__.__globals__.os.system('mkdir {trace}') }}}}",
    "{{{{ ''.__class__.__base__.__subclasses__() | map(attribute='__init__.__globals__') | list }}}}",
    "{{{{ raise_exception.__globals__['os'].mkdir('{trace}') }}}}",
    "{{{{ strftime_now.__globals__['__builtins__']['eval'](\"__import__('os').mkdir('{trace}')\") }}}}",
    "{{{{ (messages|attr('__class__'))|attr('__mro__') }}}}",
    "{{{{ '%s' | attr('format') }}}}{{{{ '{{0.__class__.__init__.__globals__}}'.format(messages) }}}}",
    "{{{{ '{{a.__class__.__mro__}}'.format_map({{'a': messages}}) }}}}",
    "{{{{ ('{{0.__class__}}'|attr('format'))(messages) }}}}",
    "{{% set f = '{{0.__class__.__mro__}}'.format %}}{{{{ f(messages) }}}}",
    "{{{{ messages | map('attr', '__class__') | map(attribute='__subclasses__') | list }}}}",
    "{{{{ messages|tojson|attr('__getattribute__')('__class__') }}}}",
    "{{% include '/etc/passwd' %}}",
    "{{% import 'os' as os %}}{{{{ os.mkdir('{trace}') }}}}",
    "{{% extends '/etc/passwd' %}}",
    "{{{{ messages.append({{'role': 'user', 'content': 'x'}}) }}}}",
    "{{{{ messages.clear() }}}}{{{{ messages[0] }}}}",
    "{{{{ range(100000000) | list | length }}}}",
    "{{% set x = namespace(a=1) %}}{{{{ x.__class__ }}}}",
    "{{{{ g.pop.__globals__ }}}}{{{{ get_flashed_messages.__globals__ }}}}",
    "{{{{ dict.mro()[-1].__subclasses__() }}}}",
    "{{{{ ().__class__.__bases__[0].__subclasses__()[40]('/etc/passwd').read() }}}}",
    "{{{{ messages[0].content.__class__ }}}}{{{{ tools.__class__ }}}}",
    "{{{{ loop.__class__ }}}}{{% for m in messages %}}{{{{ loop._iterator.__class__ }}}}{{{{ loop._recurse }}}}{{% endfor %}}",
    "{{% macro m() %}}{{% endmacro %}}{{{{ m.__globals__ }}}}{{{{ m._func.__globals__ }}}}{{{{ m._environment }}}}",
    "{{{{ caller._environment }}}}{{{{ self._TemplateReference__context }}}}",
)
"""What walks from a value to its class, its module or a file; `{trace}` is what would be made."""

BOMBS = (
    "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{{ 'a' * 20000000000 }}",
    "{{ [0] * 20000000000 }}",
    "{{ (9 ** 9 ** 9) % 7 }}",
    "{{ 10 ** 10 ** 8 }}",
    "{{ '%20000000000d' % 1 }}",
    "{{ '{:>20000000000}'.format(1) }}",
    "{{ 'a'.ljust(20000000000) }}",
    "{{ 'a' | center(20000000000) }}",
    "{{ lipsum(n=100000000) }}",
    "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}",
    "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}",
    "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(12) %}{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}{{ ns.s|length }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l|length }}",
    "{{ 'a'.join(range(90000)|map('string')|list * 100000) }}",
    "{{ 'x' | indent(20000000000) }}",
    "{{ [1] | batch(20000000000, 0) | list }}",
    "{{ [1] | tojson(indent=20000000000) }}",
    "{{ range(90000) | map('string') | map('center', 90000) | join }}",
    "{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{% for m in messages %}{{ messages.append(m) }}{% endfor %}",
)
"""What would take for ever, or all the memory."""


def _template(text: str) -> Plant:
    def plant(case: Case) -> None:
        (case.base / "chat_template.jinja").write_text(text.format(trace=case.trace))

    return plant


def _bomb(text: str) -> Plant:
    def plant(case: Case) -> None:
        (case.base / "chat_template.jinja").write_text(text)

    return plant


def _template_slots() -> Iterator[Slot]:
    for number, text in enumerate(TEMPLATES):
        yield f"chat template {number}", _template(text)

    def in_tokenizer_config(case: Case) -> None:
        (case.base / "chat_template.jinja").unlink(missing_ok=True)
        named = [{"name": "default", "template": TEMPLATES[2].format(trace=case.trace)}]
        case.edit_json(case.base / "tokenizer_config.json", chat_template=named)

    yield "chat template in tokenizer_config.json", in_tokenizer_config

    def beside(case: Case) -> None:
        folder = case.base / "additional_chat_templates"
        folder.mkdir()
        (folder / "tool_use.jinja").write_text(TEMPLATES[3].format(trace=case.trace))
        case.edit_json(case.base / "chat_template.json", chat_template=TEMPLATES[3].format(trace=case.trace))
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        rows = [
            {
                "messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}],
                "tools": tools,
            }
        ]
        with case.train.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    yield "further chat templates", beside

    def in_rows(case: Case) -> None:
        with case.train.open("a") as file:
            for text in TEMPLATES[:8]:
                value = text.format(trace=case.trace)
                call = {"function": {"name": value, "arguments": value}}
                turns = [
                    {"role": "user", "content": value},
                    {"role": "assistant", "content": value, "x": value},
                ]
                file.write(json.dumps({"messages": turns, "tools": [call], "system": value}) + "\n")
                file.write(json.dumps({"prompt": value, "completion": value, "cluster_id": value}) + "\n")

    yield "templates in rows", in_rows


def _bomb_slots() -> Iterator[Slot]:
    for number, text in enumerate(BOMBS):
        yield f"template bomb {number}", _bomb(text)


def _evil_module(folder: Path, name: str, case: Case) -> None:
    classes = "".join(
        f"class {kind}(object):\n    pass\n"
        for kind in ("EvilConfig", "EvilForCausalLM", "EvilTokenizer", "EvilTokenizerFast")
    )
    (folder / name).write_text(case.code + classes)


def _auto_map(where: str) -> Plant:
    def plant(case: Case) -> None:
        for folder in (case.base, case.adapter, case.run):
            for name in ("configuration_evil.py", "modeling_evil.py", "tokenization_evil.py", "__init__.py"):
                _evil_module(folder, name, case)
        maps = {
            "AutoConfig": "configuration_evil.EvilConfig",
            "AutoModel": "modeling_evil.EvilForCausalLM",
            "AutoModelForCausalLM": "modeling_evil.EvilForCausalLM",
            "AutoTokenizer": ["tokenization_evil.EvilTokenizer", "tokenization_evil.EvilTokenizerFast"],
        }
        if where == "known":
            case.edit_json(case.base / "config.json", auto_map=maps)
        elif where == "unknown":
            case.edit_json(
                case.base / "config.json", auto_map=maps, model_type="evil", architectures=["EvilForCausalLM"]
            )
        elif where == "tokenizer":
            case.edit_json(
                case.base / "tokenizer_config.json", auto_map=maps, tokenizer_class="EvilTokenizer"
            )
        elif where == "remote":
            remote = {key: f"{case.base}--{value}" for key, value in maps.items() if isinstance(value, str)}
            case.edit_json(case.base / "config.json", auto_map=remote)
        else:
            case.edit_json(
                case.adapter / "adapter_config.json",
                auto_mapping={"base_model_class": "EvilForCausalLM", "parent_library": "modeling_evil"},
                base_model_name_or_path=str(case.base),
                runtime_config={"a": 1},
            )

    return plant


def _settings(path: str, **values: Any) -> Plant:
    def plant(case: Case) -> None:
        for folder in (case.cwd, case.base, case.adapter, case.run):
            for package in ("evil", "megatron"):
                (folder / package).mkdir(exist_ok=True)
                for name in ("__init__.py", "core.py", "evil.py"):
                    (folder / package / name).write_text(case.code)
            (folder / "evil_module.py").write_text(case.code)
        place = case.folder / path
        case.edit_json(place, **values)
        if path.startswith("adapter/"):
            case.edit_json(case.run / place.name, **values)

    return plant


def _code_slots() -> Iterator[Slot]:
    for where in ("known", "unknown", "tokenizer", "remote", "adapter"):
        yield f"auto_map: {where}", _auto_map(where)
    adapter, config = "adapter/adapter_config.json", "base/config.json"
    yield (
        "megatron_core names a module",
        _settings(adapter, megatron_config={"x": 1}, megatron_core="megatron.evil"),
    )
    yield (
        "megatron_core names a module of Python's",
        _settings(adapter, megatron_config={"x": 1}, megatron_core="antigravity"),
    )
    for key in (
        "eva_config",
        "corda_config",
        "loftq_config",
        "lora_ga_config",
        "monteclora_config",
        "arrow_config",
    ):
        yield f"adapter {key}", _settings(adapter, **{key: {"evil": "evil_module"}})
    for value in ("eva", "loftq", "pissa", "gaussian", "orthogonal", "evil_module", "lora_ga"):
        yield f"init_lora_weights {value}", _settings(adapter, init_lora_weights=value)
    yield "adapter layer_replication", _settings(adapter, layer_replication=[[0, 2], [0, 2]])
    yield "adapter target_parameters", _settings(adapter, target_parameters=["evil_module"])
    yield "adapter trainable_token_indices", _settings(adapter, trainable_token_indices={"evil": [1]})
    yield "adapter modules_to_save", _settings(adapter, modules_to_save=["__class__", "forward"])
    yield "adapter regular expression", _settings(adapter, target_modules="__class__|.*(?P<x>a)")
    yield "attention kernel from the Hub", _settings(config, _attn_implementation="evil/evil:mod")
    yield "attention kernel from the Hub, newer name", _settings(config, attn_implementation="evil/evil")
    yield (
        "experts kernel from the Hub",
        _settings(config, experts_implementation="evil/evil", use_kernels=True),
    )
    yield "kernel_config", _settings(config, kernel_config={"RMSNorm": "evil/evil:RMSNorm"})
    yield "dtype names an attribute", _settings(config, dtype="load", torch_dtype="load")
    yield "hidden_act names a module", _settings(config, hidden_act="evil_module.evil")
    yield (
        "custom_pipelines",
        _settings(config, custom_pipelines={"text": {"impl": "evil_module.E", "pt": ["AutoModel"]}}),
    )
    for method in (
        "bitsandbytes",
        "gptq",
        "awq",
        "aqlm",
        "torchao",
        "compressed-tensors",
        "quanto",
        "hqq",
        "fp8",
        "evil",
    ):
        yield (
            f"quantization_config {method}",
            _settings(
                config,
                quantization_config={
                    "quant_method": method,
                    "load_in_4bit": True,
                    "bits": 4,
                    "quant_type": "int4_weight_only",
                    "modules_to_not_convert": ["x"],
                },
            ),
        )
    yield (
        "generation_config runs code of its own",
        _settings("base/generation_config.json", custom_generate="./evil", trust_remote_code=True),
    )
    yield (
        "generation_config compiles",
        _settings(
            "base/generation_config.json",
            cache_implementation="static",
            compile_config={"fullgraph": True, "backend": "evil_module", "_compile_all_devices": True},
        ),
    )

    def custom_generate(case: Case) -> None:
        folder = case.base / "custom_generate"
        folder.mkdir()
        (folder / "generate.py").write_text(case.code + "def generate(*a, **k):\n    return None\n")
        (folder / "requirements.txt").write_text("evil\n")

    yield "custom_generate beside the weights", custom_generate

    tokenizer = "base/tokenizer_config.json"
    yield "tokenizer_class names a module", _settings(tokenizer, tokenizer_class="evil_module.Evil")
    yield (
        "processor_class",
        _settings(
            tokenizer, processor_class="evil_module.Evil", auto_map={"AutoProcessor": "evil_module.Evil"}
        ),
    )
    yield (
        "tokenizer_file outside",
        _settings(tokenizer, tokenizer_file="/etc/passwd", vocab_file="../../etc/passwd"),
    )
    yield (
        "extra_special_tokens",
        _settings(tokenizer, extra_special_tokens={"__class__": "x", "chat_template": "y"}),
    )
    yield (
        "model_specific attributes",
        _settings(tokenizer, __class__="x", apply_chat_template="evil", backend="evil"),
    )


def _python_files(case: Case) -> None:
    names = (
        *(
            "json",
            "torch",
            "transformers",
            "numpy",
            "yaml",
            "typing",
            "sitecustomize",
            "usercustomize",
            "conftest",
        ),
        *(
            "gradian",
            "peft",
            "safetensors",
            "rich",
            "typer",
            "click",
            "jinja2",
            "pydantic",
            "sklearn",
            "scipy",
        ),
        *(
            "setup",
            "__init__",
            "__main__",
            "train",
            "dataset",
            "data",
            "run",
            "base",
            "adapter",
            "loading_script",
        ),
        *(
            "sentence_transformers",
            "pyarrow",
            "datasets",
            "kernels",
            "triton",
            "bitsandbytes",
            "xxhash",
            "evil_module",
        ),
    )
    for folder in case.untrusted:
        for name in names:
            (folder / f"{name}.py").write_text(case.code)
        (folder / "evil.pth").write_text(case.code.replace("\n", ";") + "\n")
        (folder / "setup.cfg").write_text("[metadata]\nname = evil\n")
        (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-p evil_module'\n")
        (folder / ".env").write_text("GRADIAN_OPS=reference\nPYTHONSTARTUP=evil_module.py\n")
        info = folder / "evil-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        points = "[torch.backends]\nevil = evil_module:f\n[gradian]\nevil = evil_module:f\n[console_scripts]\nx = evil_module:f\n"
        (info / "entry_points.txt").write_text(points)
        hooks = folder / ".git" / "hooks"
        hooks.mkdir(parents=True)
        for hook in ("post-checkout", "pre-commit", "post-index-change", "fsmonitor-watchman"):
            (hooks / hook).write_text(f"#!/bin/sh\nmkdir -p {case.trace}\n")
            (hooks / hook).chmod(0o755)
        (folder / ".git" / "config").write_text(
            f"[core]\n\tfsmonitor = mkdir -p {case.trace}\n\tpager = mkdir -p {case.trace}\n"
        )
        (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        for library in ("libc.so.6", "libgomp.so.1", "libcuda.so.1", "evil.so", "_native.so"):
            (folder / library).write_bytes(b"\x7fELF" + b"\0" * 60)


def _arrow_extension(case: Case) -> None:
    import pyarrow as pa

    folder = case.data / "arrow"
    folder.mkdir()
    storage = pa.array(["a"])
    bomb = pickles(case)["exec, protocol 2"]
    marks = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": bomb,
        b"pandas": b"{}",
        b"huggingface": json.dumps(
            {"info": {"features": {"prompt": {"_type": "evil_module.Evil"}}}}
        ).encode(),
    }
    fields = [
        pa.field("prompt", pa.string(), metadata=marks),
        pa.field("completion", pa.string(), metadata=marks),
    ]
    table = pa.table([storage, storage], schema=pa.schema(fields, metadata=marks))
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )
    (folder / "dataset_info.json").write_text(json.dumps({"builder_name": "evil_module"}))
    shutil.move(case.train, case.data / "other.jsonl")
    os.rename(folder, case.train)


def _dataset_script(case: Case) -> None:
    shutil.move(case.train, case.data / "other.jsonl")
    case.train.mkdir()
    for name in ("train.jsonl.py", "train.py", "dataset.py", "train_jsonl.py", "__init__.py", "builder.py"):
        (case.train / name).write_text(case.code)
    (case.train / "dataset_infos.json").write_text("{}")
    (case.train / "data.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')


def _arrow_outside(case: Case) -> None:
    _dataset_script(case)
    (case.train / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../other.jsonl"}]}))


def _metadata(case: Case) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    bomb = base64.b64encode(pickles(case)["exec, protocol 2"]).decode()
    marks = {
        "format": "pt",
        "__reduce__": bomb,
        "pickle": bomb,
        "auto_map": "evil_module.Evil",
        "quantization_config": "!!python/object/apply:os.mkdir [x]",
        "torchao_config": json.dumps({"_type": "evil_module.Evil", "_data": {}}),
    }
    for path in (case.base / "model.safetensors", case.adapter / "adapter_model.safetensors"):
        tensors: dict[str, torch.Tensor] = load_file(path)
        save_file(tensors, path, metadata=marks)
    shutil.copy(case.adapter / "adapter_model.safetensors", case.run)


def _metadata_format(name: str) -> Plant:
    def plant(case: Case) -> None:
        from safetensors.torch import load_file, save_file

        for path in (case.base / "model.safetensors", case.adapter / "adapter_model.safetensors"):
            save_file(load_file(path), path, metadata={"format": name})

    return plant


def _python_values(case: Case) -> None:
    bomb = base64.b64encode(pickles(case)["exec, protocol 2"]).decode()
    rows = [
        {
            "py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": [str(case.trace)]}],
            "prompt": "a",
            "completion": "b",
        },
        {
            "prompt": {"__class__": "os.mkdir", "type": "text", "text": {"py/object": bomb}},
            "completion": bomb,
        },
        {
            "__proto__": {"x": 1},
            "__class__": "x",
            "messages": [{"role": "__class__", "content": "{0.__class__}"}],
        },
        {"prompt": "%(x)s %n {}", "completion": "${jndi:ldap://127.0.0.1/a}", "cluster": "$(mkdir x)`id`"},
        {"prompt": "=cmd|' /C calc'!A0", "completion": "@SUM(1)", "cluster_id": f"; mkdir {case.trace}"},
    ]
    with case.train.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _recorded_dataset(case: Case) -> None:
    (case.run / "gradian_run.json").write_text(
        json.dumps({"schema_version": 1, "dataset": {"path": f"| mkdir {case.trace}", "hash": "x", "n": 1}})
    )


def _other_slots() -> Iterator[Slot]:
    yield "nothing at all", lambda case: None
    yield "modules, hooks and libraries beside the data", _python_files
    yield "Arrow extension type that is a pickle", _arrow_extension
    yield "dataset script", _dataset_script
    yield "state.json that leads outside", _arrow_outside
    yield "safetensors metadata", _metadata
    for name in ("tf", "flax", "mlx", "evil_module"):
        yield f"safetensors metadata: format {name}", _metadata_format(name)
    yield "rows that name functions", _python_values
    yield "gradian_run.json", _recorded_dataset


def slots() -> dict[str, Plant]:
    """Every canary by the name of its slot."""
    made = (*_other_slots(), *_pickle_slots(), *_yaml_slots(), *_template_slots(), *_code_slots())
    return dict(made)


def bombs() -> dict[str, Plant]:
    """Templates that would never end."""
    return dict(_bomb_slots())


@dataclass
class Outcome:
    """What one command did with one canary."""

    slot: str
    command: str
    code: int
    seconds: float
    fired: bool
    reported: list[str]
    output: str

    @property
    def faults(self) -> list[str]:
        found = [f"reported: {line}" for line in self.reported]
        if self.fired:
            found.append("the canary fired")
        if self.code not in (DONE, USER_ERROR):
            found.append(f"exit code {self.code}: {self.output[-400:]}")
        if self.seconds > SECONDS:
            found.append(f"took {self.seconds:.0f} s")
        return found


def observe(server: Server, case: Case, command: str) -> Outcome:
    """Run `gradian COMMAND` over the case."""
    answer = server.run(arguments(case, command), cwd=case.cwd, untrusted=case.untrusted, seconds=SECONDS)
    return Outcome(
        case.slot,
        command,
        answer.code,
        answer.seconds,
        any(case.nest.iterdir()),
        list(answer.reported),
        answer.output,
    )


def arguments(case: Case, command: str) -> list[str]:
    """The command line: every input that the command takes."""
    given = [
        command,
        *("--config", str(case.config)),
        *("--dataset", str(case.train)),
        *("--eval-dataset", str(case.data / "eval.jsonl")),
        *("--run", str(case.run)),
        *("--out", str(case.folder / f"out-{command}")),
    ]
    if command == "audit":  # Without a tokenizer: nothing of transformers is loaded.
        return ["diagnose", *given[1:]]
    given += ["--base-model", str(case.base)]
    return given if command == "diagnose" else [*given, "--adapter", str(case.adapter)]


def prepare(folder: Path, source: Path, slot: str) -> Case:
    """Copy the run into a fresh folder."""
    case = Case(folder, slot)
    for path in (case.nest, case.cwd, case.data, case.checkpoint, case.config.parent):
        path.mkdir(parents=True)
    shutil.copytree(source / "base", case.base)
    shutil.copytree(source / "adapter", case.adapter)
    shutil.copytree(source / "adapter", case.run, dirs_exist_ok=True)
    for name, count in (("train", 8), ("eval", 3)):
        # A few rows each: there are hundreds of commands.
        lines = (source / f"{name}.jsonl").read_text().splitlines(keepends=True)
        (case.data / f"{name}.jsonl").write_text("".join(lines[:count]))
    state = {
        "global_step": 10,
        "max_steps": 20,
        "log_history": [{"step": 5, "loss": 1.0, "learning_rate": 1e-4}],
    }
    (case.checkpoint / "trainer_state.json").write_text(json.dumps(state))
    case.config.write_text(
        f"cache_dir: {folder / 'cache'}\nevaluation: {{metric: contains, max_new_tokens: 2, n_bootstrap: 200}}\n"
    )
    return case


def source_run(folder: Path) -> Path:
    """Train the tiny run that the canaries sit in."""
    from tests.conftest import make_tokenizer
    from tests.integration.poisoned import make_poisoned_run

    folder.mkdir(exist_ok=True)
    make_poisoned_run(folder, make_tokenizer())
    return folder


def main() -> None:
    """Plant every canary and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.canaries", description=__doc__)
    parser.add_argument("--only", default="", help="slots whose name this regular expression finds")
    parser.add_argument(
        "--source", type=Path, help="folder of a run that was made before (default: train one)"
    )
    parser.add_argument("--commands", nargs="+", default=["audit", "diagnose", "attribute"])
    parser.add_argument("--bombs", action="store_true", help="only the templates that would never end")
    parser.add_argument("--first", type=int, default=0, help="begin with this slot")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no other slot after this time"
    )
    chosen = parser.parse_args()
    planted = bombs() if chosen.bombs else slots()
    names = [name for name in planted if re.search(chosen.only, name)]
    outcomes: list[Outcome] = []
    started, done = time.monotonic(), chosen.first
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        server = Server(folder)
        source = chosen.source or source_run(folder / "source")
        while done < len(names) and time.monotonic() - started < chosen.seconds:
            name = names[done]
            case = prepare(folder / f"{done:03}", source, name)
            planted[name](case)
            for command in chosen.commands:
                outcome = observe(server, case, command)
                outcomes.append(outcome)
                for fault in outcome.faults:
                    print(f"FAULT {name} / {command}: {fault[:1500]}", file=sys.stderr, flush=True)
            shutil.rmtree(case.folder)
            done += 1
        at_import = server.close()
    figures = {
        "slots": done - chosen.first,
        "of": len(names),
        "next": done,
        "commands": len(outcomes),
        "fired": sum(outcome.fired for outcome in outcomes),
        "reported by the hook": sum(len(outcome.reported) for outcome in outcomes) + len(at_import),
        "results": sum(outcome.code == DONE for outcome in outcomes),
        "typed errors": sum(outcome.code == USER_ERROR for outcome in outcomes),
        "anything else": sum(outcome.code not in (DONE, USER_ERROR) for outcome in outcomes),
        "longest, s": round(max((outcome.seconds for outcome in outcomes), default=0.0), 1),
    }
    print(json.dumps(figures, indent=2))
    sys.exit(any(outcome.faults for outcome in outcomes) or bool(at_import))


if __name__ == "__main__":
    main()
