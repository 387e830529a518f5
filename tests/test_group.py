"""Control groups of version 2 around submissions: real where this machine has them, else pretended.

What a pretended folder cannot show is that the kernel keeps the limits that are written into it.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grading import channel, group, meter, sandbox
from grading.sandbox import Limits


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A folder that looks like a group which was handed over to us, with all counters."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(group, "own", lambda: tmp_path)
    monkeypatch.setattr(Path, "rmdir", lambda path: subprocess.run(["rm", "-r", path], check=True))
    group.prepared.cache_clear()
    yield tmp_path
    group.prepared.cache_clear()


def test_the_own_group_is_found(tmp_path):
    mounts, membership = tmp_path / "mounts", tmp_path / "cgroup"
    mounts.write_text(
        "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/u cgroup2 rw 0 0\n"
    )
    membership.write_text("4:memory:/other\n0::/user.slice/x.scope\n")
    assert group.own(mounts, membership) == Path("/sys/fs/cgroup/u/user.slice/x.scope")
    membership.write_text("4:memory:/other\n")
    assert group.own(mounts, membership) is None
    assert group.own(tmp_path / "absent", membership) is None


def test_limits_are_written_and_the_group_goes(pretended):
    assert group.prepared() == (pretended, frozenset({"memory", "pids"}))
    with group.around(1000, 20) as one:
        written = {path.name: path.read_text().strip() for path in one.folder.iterdir()}
        assert written == {"memory.max": "1000", "memory.swap.max": "0", "pids.max": "28"}
    assert not one.folder.exists()
    assert "memory with the kernel's own, processes" in group.described()


def test_counters_are_read(tmp_path):
    one = group.Group(tmp_path)
    assert (one.cpu(), one.waited(), one.starved()) == (None, None, False)
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "cpu.pressure").write_text("some avg10=1.0 total=9\nfull avg10=0.5 total=1500000\n")
    (tmp_path / "memory.events").write_text("max 3\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert (one.cpu(), one.waited(), one.starved()) == (2.5, 1.5, True)
    now = meter.Meter(os.getpid(), one).read()
    assert (now.cpu, now.waited) == (2.5, 1.5)


def test_all_processes_are_taken_in_parents_first(tmp_path):
    """Between two looks a process appears; the list is asked for again until nobody is new."""
    seen, lists = [], iter([[1, 2], [1, 2, 3], [1, 2, 3]])
    one = group.Group(tmp_path)
    (tmp_path / "cgroup.procs").symlink_to(tmp_path / "last")

    def tree(process: int) -> list[int]:
        if (tmp_path / "last").exists():
            seen.append((tmp_path / "last").read_text())
        return next(lists)

    one.add(1, tree)
    assert seen == ["2\n", "3\n"]


def test_who_was_starved_by_the_group_is_told(tmp_path):
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    receive, send = os.pipe()
    with open(receive, "rb", buffering=0) as results:
        process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
        os.close(send)
        one = group.Group(tmp_path)
        run = channel.listen(process, results, Limits(), 10.0, lambda: None, one)
        channel.kill(process, None, False)
        process.stdout.close()
    assert (run.end, run.doubtful) == ("it used more than 2048 MB of memory", False)


def test_where_no_group_can_be_made_nothing_changes(isolation, tmp_path, monkeypatch):
    for home in (None, tmp_path / "absent"):
        monkeypatch.setattr(group, "own", lambda home=home: home)
        group.prepared.cache_clear()
        assert group.prepared() is None
        assert "no control group" in group.described()
        with group.around(1, 1) as one:
            assert one is None
    assert sandbox.run(["x = 1"], [], Limits()).end is None
    group.prepared.cache_clear()


def test_a_group_of_this_machine_counts_and_leaves_nothing(isolation):
    group.prepared.cache_clear()
    if group.prepared() is None:
        pytest.skip("NO CONTROL GROUP of version 2 can be made here")
    home, before = group.prepared()[0], None
    spent = (
        "import time\nstart = time.process_time()\nwhile time.process_time() < start + 0.3: pass"
    )
    run = sandbox.run([spent], [], Limits())
    assert run.end is None
    assert run.spent >= 0.3
    with group.around(1 << 30, 50) as one:
        process = subprocess.Popen(["sleep", "60"])
        one.add(process.pid, meter.tree)
        assert (one.folder / "cgroup.procs").read_text().split() == [str(process.pid)]
        before = time.monotonic()
    assert process.wait(5) == -9  # the group took it along
    assert time.monotonic() - before < 5
    assert not list(home.glob(f"ntkcourse-{os.getpid()}-[0-9]*"))
