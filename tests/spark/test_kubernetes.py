"""The manifest and the line that submits a job: parsed, and sent to a server that plays Kubernetes."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NotSupported
from penstock.spark.java import find_java

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
IMAGE = "shop:1"


@pytest.fixture(scope="module")
def manifest() -> dict[str, dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    text = (FOLDER / "spark.yaml").read_text()
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_the_parts_of_the_manifest_fit_together(manifest: dict[str, dict[str, Any]]) -> None:
    namespace = manifest["Namespace"]["metadata"]["name"]
    for kind, one in manifest.items():
        assert one["apiVersion"] in {"v1", "rbac.authorization.k8s.io/v1"}
        assert kind == "Namespace" or one["metadata"]["namespace"] == namespace
    account = manifest["ServiceAccount"]["metadata"]["name"]
    binding = manifest["RoleBinding"]
    assert [one["name"] for one in binding["subjects"]] == [account]
    assert binding["roleRef"]["name"] == manifest["Role"]["metadata"]["name"]
    (rule,) = manifest["Role"]["rules"]
    assert {"pods", "services", "configmaps", "persistentvolumeclaims"} <= set(rule["resources"])
    assert manifest["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]


def submitted(folder: Path) -> list[str]:
    """The arguments with which the script calls ``spark-submit``."""
    fake = folder / "spark-submit"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "KUBERNETES_API": "https://kubernetes.example:6443",
        "IMAGE": IMAGE,
    }
    command = [str(FOLDER / "submit.sh"), "--once"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return found.stdout.splitlines()


def test_the_line_names_what_the_manifest_makes(
    manifest: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    given = submitted(tmp_path)
    assert given[:4] == [
        "--master", "k8s://https://kubernetes.example:6443", "--deploy-mode", "cluster",
    ]  # fmt: skip
    assert given[-2:] == ["local:///opt/penstock/pipeline.py", "--once"]
    settings = dict(text.split("=", 1) for name, text in pairwise(given) if name == "--conf")
    assert settings["spark.kubernetes.namespace"] == manifest["Namespace"]["metadata"]["name"]
    account = manifest["ServiceAccount"]["metadata"]["name"]
    assert settings["spark.kubernetes.authenticate.driver.serviceAccountName"] == account
    assert settings["spark.kubernetes.container.image"] == IMAGE
    claim = manifest["PersistentVolumeClaim"]["metadata"]["name"]
    for role in ("driver", "executor"):
        volume = f"spark.kubernetes.{role}.volumes.persistentVolumeClaim.data"
        assert settings[f"{volume}.options.claimName"] == claim
        assert settings[f"{volume}.mount.path"] == "/data"


def test_the_page_shows_the_very_line() -> None:
    script = (FOLDER / "submit.sh").read_text()
    line = script[script.index("exec spark-submit") :].removeprefix("exec ").strip()
    assert line in (ROOT / "docs" / "spark.md").read_text()


class _Kubernetes(BaseHTTPRequestHandler):
    """Takes what it is given, and says that it made it."""

    made: list[dict[str, Any]] = []  # noqa: RUF012 - set anew by the fixture

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.made.append({**body, "path": self.path})
        self._answer(201, body | {"metadata": {**body.get("metadata", {}), "uid": "u-1"}})

    do_PATCH = do_PUT = do_POST  # noqa: N815 - the names that are called

    def do_GET(self) -> None:
        self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that is used
        pass

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def kubernetes() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    _Kubernetes.made = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Kubernetes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", _Kubernetes.made
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


def test_spark_takes_the_line_and_asks_for_the_right_pod(
    kubernetes: tuple[str, list[dict[str, Any]]],
) -> None:
    pyspark = pytest.importorskip("pyspark")
    try:
        java = find_java().home
    except NotSupported as missing:
        pytest.skip(str(missing))
    address, made = kubernetes
    environment = {
        "PATH": f"{Path(pyspark.__file__).parent / 'bin'}:{os.environ['PATH']}",
        "JAVA_HOME": java,
        "HOME": os.environ.get("HOME", "/"),
        "KUBERNETES_API": address,
        "IMAGE": IMAGE,
    }
    finished = subprocess.run(
        [str(FOLDER / "submit.sh"), "--once"],
        env=environment, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    pods = [one for one in made if one.get("kind") == "Pod"]
    assert pods, finished.stderr[-3000:]
    pod = pods[0]
    assert pod["path"].startswith("/api/v1/namespaces/penstock/pods")
    assert pod["spec"]["serviceAccountName"] == "spark"
    (container,) = pod["spec"]["containers"]
    assert container["image"] == IMAGE
    assert container["args"][-2:] == ["local:///opt/penstock/pipeline.py", "--once"]
    claims = {
        one["name"]: one["persistentVolumeClaim"]["claimName"]
        for one in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in one
    }
    assert claims == {"data": "penstock-data"}
    assert {"data": "/data"}.items() <= {
        one["name"]: one["mountPath"] for one in container["volumeMounts"]
    }.items()
