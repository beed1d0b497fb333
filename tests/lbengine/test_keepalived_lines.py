"""keepalived's configuration read as keepalived reads it: compared with what a real one says of it (`-t`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slackwater.lbengine.backends.ipvs.ipvs import CommandResult
from slackwater.lbengine.backends.keepalived.conf import (
    ConfigurationError,
    RealServer,
    gather,
    statements,
    virtual_servers,
)
from slackwater.lbengine.backends.keepalived.keepalived import Keepalived, LocalFiles
from slackwater.lbengine.backends.keepalived.preflight import check
from slackwater.lbengine.backends.keepalived.settings import KeepalivedPool
from slackwater.lbengine.balancer import BalancerError
from tests.support.paths import ROOT
from tests.support.placed_case import placed_case

FILES = LocalFiles()
KEEPALIVED = shutil.which("keepalived", path=f"{ROOT / '.build/bin'}:/usr/sbin:/usr/bin")
HEAD = "virtual_server 198.51.100.1 80 {\n lb_algo wrr\n protocol TCP\n"
SERVER = "real_server 192.0.2.11 80 {\n"


def read(file: Path, config_id: str | None = None) -> list[RealServer]:
    servers = virtual_servers(gather(str(file), FILES.read, FILES.matching, config_id))
    return [server for virtual in servers for server in virtual.servers]


def text_of(tmp_path: Path, inside: str, before: str = "") -> Path:
    file = tmp_path / "keepalived.conf"
    file.write_text(f"{before}\n{HEAD}{inside}\n}}\n")
    return file


def test_a_weight_that_a_parameter_holds_is_read(tmp_path: Path) -> None:
    case = placed_case("keepalived-weight-parameter", tmp_path)
    assert read(case / "keepalived.conf") == [RealServer("192.0.2.11:80", 20, ()), RealServer("192.0.2.12:80", 20, ())]


def test_an_include_inside_a_block_is_read_in_its_place(tmp_path: Path) -> None:
    case = placed_case("keepalived-include-in-block", tmp_path)
    assert read(case / "keepalived.conf") == [RealServer("192.0.2.11:80", 20, ()), RealServer("192.0.2.12:80", 20, ())]


@pytest.mark.parametrize(
    ("before", "inside", "problem"),
    [
        ("", f"{SERVER} weight $W\n}}", r":6: expected a number in `weight \$W`"),
        ("$W=twenty", f"{SERVER} weight $W\n}}", r":6: expected a number in `weight twenty`"),
        ("", f"{SERVER} weight 0x10\n}}", r":6: expected a number in `weight 0x10`"),
        ("", f"{SERVER} weight\n}}", r":6: expected a number in `weight`"),
        ("", f"{SERVER} weight -1\n}}", r":6: expected a number in `weight -1`"),
        ("", f"{SERVER} weight '20'\n}}", r":6: expected a number in `weight '20'`"),
        ("", "quorum many", r":5: expected a number in `quorum many`"),
        ("", f"weight some\n{SERVER} }}", r":5: expected a number in `weight some`"),
        ("", "real_server web1 80 {\n}", r":5: expected `real_server ADDRESS PORT`, got `real_server web1 80`"),
        ("", "real_server 192.0.2.11 http {\n}", r":5: expected `real_server ADDRESS PORT`"),
        ("", "~LST(A,1,2) weight $A", r":5: `~LST\(A,1,2\) weight \$A` is not understood here"),
        ("", f"{SERVER} weight ${{NOTHING}}\n}}", r":6: `weight \$` is not understood here"),
        ("", f"{SERVER} $NOTHING\n}}", r":6: `\$NOTHING` is not understood here"),
        ("", f"~SEQ(A,1,0,2) {SERVER} }}", r":5: expected ~SEQ\(variable, start, step, end\), got 'A,1,0,2'"),
        ("$A=$B\n$B=$A", f"{SERVER} weight $A\n}}", r"parameters or includes go on without an end"),
        ("track_file f {\n file /run/f\n weight half\n}", "", r":3: expected a number in `weight half`"),
        ("", f"weight 0\n{SERVER} }}", r":5: expected 1 to 2147483647 in `weight 0`"),
        ("", f"{SERVER} weight 2147483648\n}}", r":6: expected 0 to 2147483647 in `weight 2147483648`"),
        ("", "quorum 0", r":5: expected 1 to 4294967295 in `quorum 0`"),
        ("track_file f {\n file /run/f\n weight 300\n}", "", r":3: expected -254 to 254 in `weight 300`"),
        ("", f"{SERVER} @(one|two) weight 5\n}}", r":6: `@\(one\|two\)` is not understood here"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(
    tmp_path: Path, before: str, inside: str, problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read(text_of(tmp_path, inside, before))


@pytest.mark.skipif(KEEPALIVED is None, reason="needs keepalived")
@pytest.mark.parametrize(
    ("before", "inside", "line"),
    [
        ("", f"weight 0\n{SERVER} }}", 5),
        ("", f"{SERVER} weight 2147483648\n}}", 6),
        ("", "quorum 0", 5),
        ("track_file f {\n file /run/f\n weight 300\n}", "", 3),
    ],
)
def test_keepalived_takes_a_default_for_the_numbers_that_are_refused(
    tmp_path: Path, before: str, inside: str, line: int
) -> None:
    assert KEEPALIVED
    file = text_of(tmp_path, inside, before)
    done = subprocess.run([KEEPALIVED, "-t", "-l", "-f", str(file)], capture_output=True, text=True)
    assert re.search(rf"Line {line}\) number .* outside range", done.stdout + done.stderr)
    with pytest.raises(ConfigurationError, match=f":{line}: expected"):
        read(file)


def test_conditions_parameters_sequences_and_the_usual_weight_are_followed(tmp_path: Path) -> None:
    before = (
        "$MANY= \\\n real_server 192.0.2.${N} 80 { \\\n weight ${N}0 \\\n @big weight 99 \\\n }\n@big $N=3\n@^big $N=4"
    )
    inside = "weight 7\n$MANY\n~SEQ(N, 5, 6) $MANY\nreal_server 192.0.2.7 80 {\n}"
    file = text_of(tmp_path, inside, before)
    assert [(server.address, server.weight) for server in read(file, "small")] == [
        ("192.0.2.4:80", 40),
        ("192.0.2.5:80", 50),
        ("192.0.2.6:80", 60),
        ("192.0.2.7:80", 7),
    ]
    assert [server.weight for server in read(file, "big")] == [99, 99, 99, 7]


def test_a_weight_that_ipvs_shows_otherwise_is_not_written_to(tmp_path: Path) -> None:
    """Somebody has set it past keepalived, or the configuration means something else: a sum would be wrong."""
    inside = "".join(
        f"real_server 192.0.2.1{n} 80 {{\n weight 1\n FILE_CHECK {{\n track_file f{n}\n }}\n}}\n" for n in (1, 2)
    )
    files = "".join(f"track_file f{n} {{\n file {tmp_path}/f{n}\n}}\n" for n in (1, 2))
    file = text_of(tmp_path, inside, files)
    service = "-t 198.51.100.1:80"
    table = f"-A {service} -s wrr\n" + "".join(f"-a {service} -r 192.0.2.1{n}:80 -m -w 20\n" for n in (1, 2))
    rows = "".join(f"  -> 192.0.2.1{n}:80 0 0 0 0 0\n" for n in (1, 2))
    listed = (
        f"IP Virtual Server\nProt LocalAddress:Port\n  -> RemoteAddress:Port\nTCP  198.51.100.1:80 0 0 0 0 0\n{rows}"
    )

    class Running(LocalFiles):
        def read(self, path: str) -> str | None:
            fixed = {"/run/keepalived.pid": "7", "/proc/7/comm": "keepalived", "/proc/7/cmdline": f"k\0-f\0{file}\0"}
            return fixed.get(path) or super().read(path)

    driven = Keepalived(
        service, lambda argv, _: CommandResult(0, table if "-Sn" in argv else listed, ""), Running(), 0.0
    )
    refusal = "192.0.2.11:80 has weight 20 in IPVS, where the configuration and its track_file ask for 1"
    with pytest.raises(BalancerError, match=f"before anything was written: {re.escape(refusal)}"):
        driven.set_weights({"192.0.2.11:80": 5})
    assert not list(tmp_path.glob("f*"))
    with pytest.raises(BalancerError, match=re.escape(refusal)):
        check(driven, KeepalivedPool(name="web", service=service), Running())
    with pytest.raises(BalancerError, match="shows 20 instead of 1"):
        driven.set_weights({"192.0.2.11:80": 1})  # the way back is open
    assert (tmp_path / "f1").read_text() == "0\n"


@pytest.mark.skipif(KEEPALIVED is None, reason="needs keepalived")
@pytest.mark.parametrize("include", ["d/*", "d/", "d", "d/{a,sub,x,none}*", "d/a.conf", "d/a.conf/", "d/a", "d/p*"])
def test_only_the_files_that_keepalived_includes_are_read(tmp_path: Path, include: str) -> None:
    assert KEEPALIVED
    (tmp_path / "d/sub").mkdir(parents=True)
    for name in ("a.conf", "x.conf", ".hidden", "sub/deep.conf"):
        (tmp_path / "d" / name).write_text(f"quorum w{name}\n")
    (tmp_path / "d/x.conf").chmod(0o755)
    os.mkfifo(tmp_path / "d/pipe")
    (tmp_path / "d/nowhere").symlink_to("/nonexistent")
    file = text_of(tmp_path, f"include {include}\nquorum wlast")
    done = subprocess.run([KEEPALIVED, "-t", "-l", "-f", str(file)], capture_output=True, text=True)
    theirs = re.findall(r"number '(.*)'$", done.stdout + done.stderr, re.MULTILINE)
    top = statements(gather(str(file), FILES.read, FILES.matching).lines)
    assert [line.words[1] for statement in top for line in statement.all("quorum")] == theirs
    assert theirs[-1] == "wlast"


WORD = st.sampled_from(["x", "$A", "${A}", "$B", "${B}y", "$A$B", "z${_INSTANCE}", "${A}${B}", '"q r"', "#", "!", "'"])
WEIGHT = st.lists(WORD, min_size=1, max_size=3).map("".join)


@st.composite
def configurations(draw: st.DrawFn) -> tuple[str, str]:
    """A configuration whose weights are no numbers, so that keepalived names each; and a file that it includes."""

    def lines(most: int, *, included: bool) -> str:
        text = ""
        for _ in range(draw(st.integers(1, most))):
            condition = draw(st.sampled_from(["", "", "", "@one ", "@^one ", "@two ", "@^two "]))
            kind = draw(
                st.sampled_from(["weight", "weight", "weight", "set", "include", "several", "sequence", "comment"])
            )
            if kind == "weight":
                text += f"{condition}weight w{draw(WEIGHT)} {draw(st.sampled_from(['', 'more', '! no', '# no']))}\n"
            elif kind == "set":
                value = draw(st.sampled_from(["1", "", "v w", "${_INSTANCE}", "2 # c"]))
                text += f"{condition}${draw(st.sampled_from('AB'))}={value}\n"
            elif kind == "include" and not included:
                text += f"{draw(st.sampled_from(['include', 'includer']))} sub/*.conf\n"
            elif kind == "several":
                text += f"$M= \\\n weight m${{A}} \\\n weight n$B\n{condition}$M\n"
            elif kind == "sequence":
                text += f"~SEQ(S, {draw(st.integers(0, 2))}, {draw(st.integers(0, 3))}) weight s${{S}}\n"
            else:
                text += draw(
                    st.sampled_from(["# weight c1\n", "  ! weight c2\n", "\n", 'notify_up "/bin/x { # ! }"\n'])
                )
        return text

    first = f"$A=a\n$B=b\n{HEAD}{SERVER}{lines(8, included=False)}}}\n}}\n"
    return first, lines(4, included=True)


@pytest.mark.skipif(KEEPALIVED is None, reason="needs keepalived")
@settings(max_examples=80, deadline=None)
@given(configurations())
@example((f"$A=1\n{HEAD}{SERVER} weight x$A\n weight x$Ay\n weight x${{A}}y\n weight 'a # b\n}}\n}}\n", ""))
def test_keepalived_reads_the_same_weights(texts: tuple[str, str]) -> None:
    assert KEEPALIVED
    with tempfile.TemporaryDirectory(prefix="sw-") as name:
        folder = Path(name)
        (folder / "sub").mkdir()
        file = folder / "keepalived.conf"
        file.write_text(texts[0])
        (folder / "sub/a.conf").write_text(texts[1])
        done = subprocess.run(
            [KEEPALIVED, "-t", "-l", "-i", "one", "-f", str(file)], cwd=folder, capture_output=True, text=True
        )
        invalid = re.findall(r"(?:invalid|negative) number '(.*)'$", done.stdout + done.stderr, re.MULTILINE)
        top = statements(gather(str(file), FILES.read, FILES.matching, "one").lines)
    (server,) = [real for statement in top for real in statement.all("real_server")]
    ours = [statement.words[1] for statement in server.all("weight")]
    assert ours == invalid
