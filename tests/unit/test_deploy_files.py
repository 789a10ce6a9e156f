"""The files of docs/deploy name what exists: commands, options, settings, volumes, secrets, variables."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/deploy"
MANIFESTS = sorted((FOLDER / "kubernetes").rglob("*.yaml"))
POOLS = sorted((FOLDER / "pools").glob("*.json"))


def manifests() -> list[dict[str, Any]]:
    return [found for path in MANIFESTS for found in yaml.safe_load_all(path.read_text())]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found


def pod_specs() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Yield the name of what makes pods, the pods' spec, and the volumes that are claimed for each of them."""
    for found in manifests():
        spec = found.get("spec", {})
        if "template" in spec:
            claimed = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])]
            yield found["metadata"]["name"], spec["template"]["spec"], claimed


def environment() -> dict[str, str]:
    """Every variable that a container of ours is given."""
    found: dict[str, str] = {}
    for service in compose()["services"].values():
        found |= service.get("environment", {})
    for _, spec, _ in pod_specs():
        for container in spec["containers"]:
            found |= {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}
    for pool in POOLS:
        found |= json.loads(pool.read_text())["variables"]["properties"]["env"]["default"]
    for name in re.findall(r"export (\w+)=", commands()):
        found[name] = ""
    return found


def commands() -> str:
    """The text in which all commands stand."""
    texts = [path.read_text() for path in (FOLDER / "compose.yaml", *MANIFESTS)]
    [cmd] = re.findall(r"^CMD (\[.*\])$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    return "\n".join([*texts, f"exec {shlex.join(json.loads(cmd))}"])


def test_every_setting_of_prefect_and_every_variable_of_ours_exists() -> None:
    from prefect.settings import Settings

    known = Settings.model_fields  # loaded before the names are asked for
    assert known
    from prefect.settings.legacy import _get_settings_fields

    names = set(_get_settings_fields(Settings))
    ours = "\n".join(path.read_text() for path in [*(ROOT / "flows").glob("*.py"), *(ROOT / "registry").glob("*.py")])
    for name in environment():
        if name.startswith("PREFECT_"):
            assert name in names, name
        if name.startswith("RAGBRAID_"):
            assert f'"{name}"' in ours, name


def test_every_command_takes_the_options_that_it_is_given() -> None:
    from prefect.cli.server import server_app
    from prefect.cli.worker import worker_app

    from ragbraid.flows.cli import app

    ran = [shlex.split(line) for line in re.findall(r"exec ((?:ragbraid|prefect) .*)$", commands(), re.MULTILINE)]
    assert {tuple(words[:2]) for words in ran} == {
        ("ragbraid", "worker"),
        ("prefect", "server"),
        ("prefect", "worker"),
    }
    for program, group, *words in ran:
        if program == "ragbraid":
            command = app.get_command(None, group)  # type: ignore[arg-type]  # looked up in a table
            assert command is not None
            command.make_context(group, words)
        else:
            {"server": server_app, "worker": worker_app}[group].parse_args(words, exit_on_error=False)


def test_services_of_the_compose_file_name_secrets_volumes_and_services_that_it_defines() -> None:
    file = compose()
    for name, service in file["services"].items():
        assert set(service.get("secrets", [])) <= set(file["secrets"]), name
        named = [volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith("$")]
        assert set(named) <= set(file["volumes"]), name
        assert "healthcheck" in service, name
        for other, condition in service.get("depends_on", {}).items():
            assert "healthcheck" in file["services"][other], other
            assert condition == {"condition": "service_healthy"}
    read = set(re.findall(r"/run/secrets/(\w+)", json.dumps(file["services"])))
    assert read <= set(file["secrets"])
    assert (FOLDER / file["services"]["worker"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / file["services"]["worker"]["build"]["dockerfile"]).is_file()


def test_manifests_mount_volumes_and_read_secrets_that_exist() -> None:
    found = manifests()
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(names) == len(set(names))
    assert {each["metadata"].get("namespace") for each in found if each["kind"] != "Namespace"} == {"ragbraid"}
    [secret] = [each for each in found if each["kind"] == "Secret"]
    for name, spec, claimed in pod_specs():
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | set(claimed)
        for volume in spec.get("volumes", []):
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in names
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
        for container in spec["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, name
            assert set(re.findall(r"/run/secrets/ragbraid/(\w+)", json.dumps(container))) <= set(secret["stringData"])
            for entry in container.get("env", []):
                if "valueFrom" in entry:
                    assert entry["valueFrom"]["secretKeyRef"]["key"] in secret["stringData"]


def test_services_of_the_manifests_lead_to_pods() -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"] for each in manifests() if "template" in each.get("spec", {})
    ]
    for each in manifests():
        if each["kind"] == "Service":
            assert each["spec"]["selector"] in labels
        if "template" in each.get("spec", {}):
            assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_fit_the_schema_of_kubernetes(path: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for found in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(found, "1.31", strict=True)


@pytest.mark.parametrize("path", POOLS, ids=lambda path: path.name)
def test_templates_of_pools_are_taken_by_prefect(path: Path) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate

    template = json.loads(path.read_text())
    pool = WorkPoolCreate(name="jobs", type=path.stem, base_job_template=template)
    assert pool.base_job_template["variables"]["properties"]["image"]["default"] == "ragbraid"


@pytest.mark.parametrize(("package", "name"), [("prefect_kubernetes", "Kubernetes"), ("prefect_docker", "Docker")])
def test_templates_of_pools_make_a_job_of_the_worker_of_their_type(package: str, name: str) -> None:
    worker = pytest.importorskip(f"{package}.worker")
    configuration = getattr(worker, f"{name}WorkerJobConfiguration")
    template = json.loads((FOLDER / f"pools/{name.lower()}.json").read_text())
    made = asyncio.run(configuration.from_template_and_values(template, {"env": {"MORE": "x"}}, client=object()))
    assert made.env["RAGBRAID_FOLDER"] == "/project"
    assert made.env["MORE"] == "x"
    if name == "Kubernetes":
        job = made.job_manifest["spec"]["template"]["spec"]
        assert job["containers"][0]["image"] == "ragbraid"


def test_the_image_is_built_from_files_and_extras_that_exist() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [extras] = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    kept = re.findall(r"^!(\S+)$", (FOLDER / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert all((ROOT / name).exists() for name in kept)
    needed = {*project["tool"]["setuptools"]["package-dir"].values(), project["project"]["readme"], "LICENSE"}
    assert needed | {"pyproject.toml"} == set(kept)
