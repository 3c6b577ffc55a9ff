"""Manifests and the Dockerfile: valid against KServe's schemas, and naming only what there is."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from octavo.commandline import Parsed
from octavo.observe.metrics import EngineMetrics
from octavo_adapters.kserve.options import COMMAND, KServeOptions

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "adapters" / "octavo_adapters" / "kserve" / "manifests"
SCHEMAS = Path(os.environ.get("OCTAVO_KSERVE_CRDS", ROOT.parent / "shared" / "kserve-crds"))
# KServe's own flags, parsed by its parser.
SERVER_FLAGS = {"--model_name", "--http_port", "--grpc_port", "--enable_grpc"}
OTHER_KINDS = {"ScaledObject", "HorizontalPodAutoscaler", "PodMonitor", "NetworkPolicy"}


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(MANIFESTS.rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            for document in yaml.safe_load_all(path.read_text()):
                yield str(path.relative_to(MANIFESTS)), document


ALL = dict(documents())


def strict(schema: Any) -> Any:
    """The schema, refusing unknown fields, as the API server does."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if "properties" in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


@functools.cache
def schema_of(kind: str, version: str) -> Any:
    if not SCHEMAS.is_dir():
        pytest.skip("KServe's schemas are not here: set OCTAVO_KSERVE_CRDS to the directory that has them")
    plural = kind.lower() + "s"
    text = (SCHEMAS / f"serving.kserve.io_{plural}.yaml").read_text()
    # Tens of thousands of lines: minutes for the loader in Python, a second for the one in C.
    crd = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (found,) = [one for one in crd["spec"]["versions"] if one["name"] == version]
    schema = strict(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    # Not jsonschema.validate, which checks the schema itself each time: it is megabytes.
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", [name for name, one in ALL.items() if one["kind"] not in OTHER_KINDS])
def test_the_schemas_of_the_cluster_take_them(name: str) -> None:
    document = ALL[name]
    validator = schema_of(document["kind"], document["apiVersion"].partition("/")[2])
    assert [error.message for error in validator.iter_errors(document)] == []
    broken = {**document, "spec": {**document["spec"], "predictorr": {}}}
    assert not validator.is_valid(broken)


def arguments(value: Any) -> Iterator[list[str]]:
    """Every list of arguments for octavo in a document."""
    if isinstance(value, list):
        for one in value:
            yield from arguments(one)
    elif isinstance(value, dict):
        if "args" in value:
            yield value["args"]
        for one in value.values():
            yield from arguments(one)


def parse(flags: list[str]) -> Parsed:
    ours = [flag for flag in flags if flag.partition("=")[0] not in SERVER_FLAGS]
    with COMMAND.make_context("kserve", ours) as context:
        return COMMAND.read(context)


@pytest.mark.parametrize("name", [name for name, one in ALL.items() if list(arguments(one))])
def test_every_flag_is_one(name: str) -> None:
    for flags in arguments(ALL[name]):
        parse(flags)


def grace_periods(value: Any) -> Iterator[tuple[int, float]]:
    """(of the pod, of the server) wherever a pod says both."""
    if isinstance(value, list):
        for one in value:
            yield from grace_periods(one)
    elif isinstance(value, dict):
        if "terminationGracePeriodSeconds" in value:
            for flags in arguments(value):
                yield value["terminationGracePeriodSeconds"], parse(flags).get(KServeOptions).grace_period
        for one in value.values():
            yield from grace_periods(one)


def test_servers_end_before_their_pods() -> None:
    found = [pair for one in ALL.values() for pair in grace_periods(one)]
    assert found
    assert all(server <= pod for pod, server in found)


def test_every_metric_is_exported() -> None:
    metrics = EngineMetrics("m")
    exported = {family.name for family in metrics.collect()}
    texts = "\n".join(path.read_text() for path in (MANIFESTS / "scaling").glob("*.yaml"))
    named = set(re.findall(r"(?:vllm|octavo):[a-z_]+", texts))
    assert named
    assert named <= exported


def test_kustomizations_name_every_file() -> None:
    for path in MANIFESTS.rglob("kustomization.yaml"):
        for resource in yaml.safe_load(path.read_text())["resources"]:
            assert (path.parent / resource).exists()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl to render with")
@pytest.mark.parametrize("folder", ["runtimes", "examples", "scaling", "overlays/cpu", "overlays/gpu"])
def test_kubectl_renders_them(folder: str) -> None:
    command = ["kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", str(MANIFESTS / folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rendered = list(yaml.safe_load_all(ran.stdout))
    assert rendered
    if folder == "overlays/cpu":
        (runtime,) = rendered
        assert runtime["metadata"]["name"] == "octavo-cpu"
    if folder == "overlays/gpu":
        assert sum("nodeSelector" in one["spec"] for one in rendered) == 1


def test_the_dockerfile_names_what_there_is() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    for name in (name for names in copied for name in names):
        assert (ROOT / name).exists(), name
    for extras in re.findall(r"octavo-\*\.whl\)\[([a-z,]+)\]", text):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
    for flags in re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE):
        parse(yaml.safe_load(flags))
    assert {line.split()[-1] for line in text.splitlines() if line.startswith("FROM ")} == {
        "build",
        "base",
        "cpu",
        "gpu",
    }
    assert text.count("USER 1000") == 2
    for line in text.splitlines():
        if line.startswith("ENTRYPOINT"):
            assert yaml.safe_load(line.removeprefix("ENTRYPOINT ")) == shlex.split("python -m octavo_adapters.kserve")
