"""Models from files are built and run without network."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import torchgauge as tg
from torchgauge.cli import main
from torchgauge.errors import TargetError
from torchgauge.source import resolve
from torchgauge.source.offline import offline, offline_for

LEAKING = {
    "model_type": "rf_detr",
    "architectures": ["RfDetrForObjectDetection"],
    "backbone": "somebody/a-name-that-leaks",
    "use_timm_backbone": False,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that are looked up; none of them exists."""
    hosts: list[str] = []

    def lookup(host: Any, *_: object, **__: object) -> Any:
        hosts.append(str(host))
        raise socket.gaierror("there is no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return hosts


@pytest.fixture
def leaking(tmp_path: Path) -> str:
    """A config for which transformers asks the hub."""
    pytest.importorskip("transformers.models.rf_detr")
    (tmp_path / "config.json").write_text(json.dumps(LEAKING))
    return str(tmp_path)


def test_a_config_that_asks_the_hub_is_refused_with_the_host(leaking: str, asked: list[str]) -> None:
    with pytest.raises(TargetError, match=r"asks for the network \(huggingface\.co\)"):
        resolve(leaking)
    assert asked == []


@pytest.mark.parametrize("options", [["--inference"], ["--profile"], ["--verify"], []])
def test_no_command_asks_the_hub(
    options: list[str], leaking: str, asked: list[str], without_isolation: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([leaking, "--no-progress", *options]) == 1
    assert "huggingface.co" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    "connect",
    [
        lambda: socket.create_connection(("models.example", 80), timeout=1),
        lambda: socket.getaddrinfo("models.example", 80),
        lambda: socket.gethostbyname("models.example"),
    ],
)
def test_the_error_names_the_host_that_was_asked_for(connect: Callable[[], object]) -> None:
    check_refused(connect)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("connect", (("models.example", 80),)),
        ("connect_ex", (("models.example", 80),)),
        ("sendto", (b"a", ("models.example", 53))),
        ("sendto", (b"a", 0, ("models.example", 53))),
    ],
)
def test_sockets_name_it_too(method: str, arguments: tuple[Any, ...]) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as connection:
        check_refused(lambda: getattr(connection, method)(*arguments))


def check_refused(connect: Callable[[], object]) -> None:
    @offline("'x.pt'")
    def build() -> None:
        try:
            connect()
        except OSError as error:  # libraries wrap it
            raise ValueError("cannot load the backbone") from error

    with pytest.raises(TargetError, match=r"'x\.pt' asks for the network \(models\.example\)"):
        build()


def test_other_errors_stay_what_they_are() -> None:
    @offline("'x.pt'")
    def build() -> None:
        with suppress(OSError):
            socket.getaddrinfo("models.example", 80)
        raise ValueError("of another kind")

    with pytest.raises(ValueError, match="of another kind"):
        build()


def test_sockets_of_this_machine_work() -> None:
    with offline("'x.pt'"):
        one, other = socket.socketpair()
        with one, other:
            one.sendall(b"a")
            assert other.recv(1) == b"a"


def state() -> dict[str, Any]:
    constants: Any = sys.modules.get("huggingface_hub.constants")
    return {
        "variables": {name: value for name, value in os.environ.items() if "OFFLINE" in name},
        "constant": constants and constants.HF_HUB_OFFLINE,
        "functions": [vars(socket)[name] for name in ("getaddrinfo", "gethostbyname", "create_connection")],
        "methods": sorted(vars(socket.socket)),
    }


def test_nothing_is_left_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    before = state()
    with offline("'x.pt'"), offline("'y.pt'"):
        assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert state() == before
    with pytest.raises(KeyError), offline("'x.pt'"):
        raise KeyError
    assert state() == before


def test_libraries_that_are_imported_meanwhile_are_online_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delitem(sys.modules, "datasets.config", raising=False)
    with offline("'x.pt'"):
        library: Any = type(sys)("datasets.config")
        library.HF_HUB_OFFLINE = os.environ["HF_HUB_OFFLINE"] == "1"
        monkeypatch.setitem(sys.modules, "datasets.config", library)
        assert library.HF_HUB_OFFLINE
    assert not library.HF_HUB_OFFLINE


def test_other_threads_keep_their_network(asked: list[str]) -> None:
    before, inside, outside = state(), threading.Event(), threading.Event()

    def other() -> None:
        with offline("'other.pt'"):
            inside.set()
            outside.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("mine.example", 80)
    with offline("'mine.pt'"):  # the blocks end in the order that they began in
        outside.set()
        thread.join()
        with pytest.raises(OSError, match="no network"):
            socket.getaddrinfo("mine.example", 80)
    assert asked == ["mine.example"]
    assert state() == before


def test_the_users_own_code_may_use_the_network(tmp_path: Path, asked: list[str]) -> None:
    code = "import socket, torch\ntry:\n    socket.getaddrinfo('mine.example', 80)\nexcept OSError:\n    pass\n"
    (tmp_path / "net.py").write_text(
        f"{code}class Net(torch.nn.Linear):\n    def __init__(self): super().__init__(1, 1)\n"
    )
    tg.analyze(f"{tmp_path / 'net.py'}:Net", input_size=(1, 1))
    assert asked == ["mine.example"]


def test_only_files_and_folders_are_run_offline(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    for target in (f"{tmp_path / 'net.py'}:Net", "package:Net", object()):
        with offline_for(target):
            assert vars(socket.socket).keys().isdisjoint({"connect"})
    with offline_for(tmp_path):
        assert "connect" in vars(socket.socket)
