"""Every assignment: the solution gets all points, the starter none, a mistake costs its task.

The sample of `homework_sample` stands for those that are not written yet.
"""

import copy
import json
import os
import re
from pathlib import Path

import homework_alone
import homework_sample as sample
import jax
import nbformat
import pytest
import yaml
from jaxtyping import config

from grading import compare, grade, masters, perform, release, sandbox, starter, submissions

ROOT = Path(__file__).resolve().parent.parent
SEED = "a seed of the tests"
COURSE = masters.find(ROOT / "homework")
each_of_the_course = pytest.mark.parametrize("name", list(COURSE))


def declared_wrong(notebook: dict) -> list[str]:
    return list(notebook["metadata"]["ntkcourse"].get("wrong", {}))


WRONG = {sample.NAME: declared_wrong(sample.master())}
WRONG |= {name: declared_wrong(json.loads(path.read_text())) for name, path in COURSE.items()}
each_assignment = pytest.mark.parametrize("name", list(WRONG))
each_task = pytest.mark.parametrize(("name", "task"), [(n, t) for n in WRONG for t in WRONG[n]])


@pytest.fixture(scope="module", autouse=True)
def optimised_little():
    """Inside the sandbox, too, XLA compiles as in all tests: see conftest.py."""
    as_it_is = sandbox.environment
    with pytest.MonkeyPatch.context() as patch:
        if flags := os.environ.get("XLA_FLAGS"):
            patch.setattr(sandbox, "environment", lambda *a: as_it_is(*a) | {"XLA_FLAGS": flags})
        yield


@pytest.fixture(scope="session")
def master(tmp_path_factory):
    folder = tmp_path_factory.mktemp("homework")
    paths = COURSE | {sample.NAME: sample.write(folder)}
    known: dict = {}

    def find(name: str) -> masters.Master:
        if name not in known:
            known[name] = masters.read(paths[name])
        return known[name]

    return find


@pytest.fixture(scope="session")
def answers(isolation, master):
    """What the solution of an assignment returns for the hidden inputs."""
    known: dict = {}

    def find(name: str) -> tuple[grade.Marking, str, list[dict]]:
        if name not in known:
            marking = grade.Marking({name: master(name)}, SEED)
            known[name] = (marking, SEED, *grade.expected(master(name), marking, [SEED]))
        return known[name]

    return find


def marks(notebook: dict, master: masters.Master, answers) -> dict[str, float]:
    cells = submissions.code_cells(json.loads(json.dumps(notebook)))
    record, doubtful = grade.mark(cells, master, *answers)
    assert not doubtful
    return {task["name"]: task["score"] for task in record["tasks"]}


# Marks


@each_assignment
def test_the_solution_gets_full_marks(master, answers, name):
    one = master(name)
    assert marks(one.notebook, one, answers(name)) == {t.name: t.points for t in one.tasks}


@each_assignment
def test_the_untouched_starter_gets_none(master, answers, name):
    one = master(name)
    assert marks(release.starter(one, {}, ""), one, answers(name)) == {t.name: 0 for t in one.tasks}


@pytest.mark.parametrize("half", [0, 1])
@each_assignment
def test_wrong_solutions_lose_exactly_their_points(master, answers, name, half):
    """Every other task wrong, then those between; one start each instead of one for every task."""
    one = master(name)
    wrong = {}
    for task, _, notebook in masters.wrong_solutions(one):
        wrong.setdefault(task.name, homework_alone.solution(one, task, notebook))
    chosen = {task.name for task in one.tasks[half::2]}
    notebook = copy.deepcopy(one.notebook)
    for cell in notebook.cells:
        if (task := masters.grade_id(cell).removeprefix("task-")) in chosen:
            cell.source = wrong[task]
    expected = {t.name: 0 if t.name in chosen else t.points for t in one.tasks}
    assert marks(notebook, one, answers(name)) == expected


@pytest.mark.soak  # by default several at once: see above
@each_task
def test_a_wrong_solution_loses_exactly_its_points(master, answers, name, task):
    one = master(name)
    what, notebook = next((w, nb) for t, w, nb in masters.wrong_solutions(one) if t.name == task)
    expected = {t.name: 0 if t.name == task else t.points for t in one.tasks}
    assert marks(notebook, one, answers(name)) == expected, what


@each_assignment
def test_every_wrong_solution_is_noticed(master, answers, name):
    """All of them in one process, under other names; that costs one start instead of dozens."""
    one, (marking, _, right) = master(name), answers(name)
    cells = grade.runnable(submissions.code_cells(one.notebook), one)
    sources, calls, notes = [cell.source for cell in cells], [], []
    hidden = grade.hidden_calls(one, SEED)
    for number, (task, what, notebook) in enumerate(masters.wrong_solutions(one)):
        [cell] = [c for c in notebook.cells if masters.grade_id(c) == f"task-{task.name}"]
        renamed = f"{task.function}_{number}"
        sources.append(re.sub(rf"\b{task.function}\b", renamed, cell.source))
        for answer, call in zip(right, hidden, strict=True):
            if call.task == task.name:
                calls.append(perform.Call(renamed, renamed, call.arguments))
                notes.append((f"{task.name}: {what}", answer, task.tolerance))
    outcome = perform.perform(sources, calls, marking.limits)
    noticed = dict.fromkeys((note for note, *_ in notes), False)
    for k, (note, answer, tolerance) in enumerate(notes):
        got = outcome.values.get(k)
        noticed[note] |= got is None or bool(compare.difference(answer, got, tolerance))
    assert [note for note, seen in noticed.items() if not seen] == []


@each_assignment
def test_other_seeds_give_other_inputs(master, name):
    for task in master(name).tasks:
        one, same, other = (masters.inputs(task, name, seed, 0) for seed in ("1", "1", "2"))
        assert repr(one) == repr(same)
        assert repr(one) != repr(other), f"{task.name} draws nothing at random"


# The assignments of the course


@each_of_the_course
def test_an_assignment_follows_the_format_and_its_starter_is_up_to_date(name):
    assert release.problems(COURSE[name]) == []


@each_of_the_course
def test_points_and_tasks_of_an_assignment(master, name):
    one = master(name)
    assert one.points == 20
    assert 14 <= sum(task.points for task in one.tasks) <= 16
    assert one.written
    for cell in one.notebook.cells:
        if re.fullmatch(r"task-.*-text", masters.grade_id(cell)):
            assert re.search(r"difficulty: [●○]{3}, \d+ points?\)", cell.source), cell.source[:80]


@each_of_the_course
def test_a_starter_keeps_no_secret_and_shows_what_is_expected(name):
    text = COURSE[name].with_name("starter.ipynb").read_text()
    for secret in ("BEGIN SOLUTION", "HIDDEN TESTS", "def draw(", '"wrong"', '"replace"'):
        assert secret not in text
    notebook = nbformat.reads(text, as_version=4)
    assert any("**Expected result**" in cell.source for cell in notebook.cells)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    url = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    assert any(
        f'%pip install -q "ntkcourse[book] @ git+{url}"' in cell.source for cell in notebook.cells
    )


@pytest.fixture(scope="module")
def lesson(master):
    """The starter of an assignment after it ran from top to bottom, as a user has the package."""
    known: dict = {}

    def find(name: str) -> tuple[dict, dict[str, str], str]:
        if name not in known:
            known[name] = homework_alone.stage(master(name))
        return known[name]

    config.update("jaxtyping_disable", True)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield find
    config.update("jaxtyping_disable", False)


@each_of_the_course
def test_a_starter_runs_to_the_end_and_skips_what_is_not_solved(master, lesson, name):
    _, cells, printed = lesson(name)
    waiting = [cell for cell in cells if cell.startswith(("show-", "test-"))]
    assert printed.count("This task is not solved yet.") == len(waiting)


@each_of_the_course
def test_what_the_public_cell_accepts_the_marking_accepts(master, lesson, name):
    names, cells, _ = lesson(name)
    assert list(homework_alone.disagreements(master(name), names, cells)) == []


@pytest.mark.soak  # by default the names that cells use are looked at: starter.entangled
@each_of_the_course
def test_each_task_can_be_done_alone(master, lesson, name):
    names, cells, _ = lesson(name)
    assert list(homework_alone.alone(master(name), names, cells)) == []


def test_a_cell_that_needs_another_task_is_noticed(tmp_path):
    path = sample.write(tmp_path)
    assert starter.entangled(masters.read(path)) == []
    path.write_text(path.read_text().replace("print(centred(", "print(gram(", 1))
    fault = "show-centre: expected no names of other tasks, got ['gram']"
    assert starter.entangled(masters.read(path)) == [fault]


def test_every_starter_is_on_the_site_and_in_the_list():
    contents = (ROOT / "_toc.yml").read_text()
    page = (ROOT / "homework/index.md").read_text()
    for name in COURSE:
        assert f"homework/{name}/starter\n" in contents
    assert release.listed(page, {n: masters.read(p) for n, p in COURSE.items()}) == page
