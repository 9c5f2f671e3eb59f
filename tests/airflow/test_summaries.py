"""Tables in the logs of tasks. Sentences are tested where their tasks are."""

from steptime.airflow.summaries import as_text


def test_numbers_stand_below_each_other_even_if_some_are_missing():
    rows = [
        {"run": "a", "step time, s": 12.34567, "gpus": 8, "valid": True, "reason": None},
        {"run": "long", "step time, s": None, "gpus": 2048, "valid": False, "reason": "it failed"},
    ]
    title, _, head, rule, *lines = as_text(rows, title="results of x").strip("\n").splitlines()
    assert (title, set(rule)) == ("results of x", set(" ─"))
    assert [head, *lines] == [
        "  run    step time, s   gpus   valid   reason",
        "  a             12.35      8   True    -",
        "  long              -   2048   False   it failed",
    ]
