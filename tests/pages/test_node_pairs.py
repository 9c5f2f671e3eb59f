"""The heat map of a node sweep, and its links to a node and to the command that drains it."""

import itertools
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages.framed import NAVIGATION, opened
from playwright.sync_api import expect
from stored import write_node_sweep

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.mark.usefixtures("auth_manager")
def test_the_heat_map_leads_to_a_slow_node_and_to_the_command_that_drains_it(page, store, make_result):
    pairs = itertools.combinations([f"node{number}" for number in range(1, 9)], 2)
    seconds = {
        pair: 0.13 if "node2" in pair else 0.14 if pair == ("node3", "node7") else 0.1 for pair in pairs
    }
    run = make_result().run.model_copy(update={"cluster": "mini-slurm"})
    write_node_sweep(store, make_result, seconds, run=run, submitted_at=time.time())

    frame = opened(page, f"{NAVIGATION}?view=pairs&sweep=nodes")

    expect(frame.locator("#summary")).to_have_text(
        "Node node2 is slow: its 7 pairs take 30 % longer than the median."
    )
    heat = frame.locator("#node-pairs")
    expect(heat.locator("td.slow")).to_have_text(["+40.0", "+40.0"])
    expect(heat.get_by_title("node3 - node7, 7.14 GB/s")).to_have_class("number heat slow")
    expect(heat.locator("th.slow")).to_have_text(["node2", "node2"])
    # The text in the cells is readable.
    assert not [one["id"] for one in Axe().run(page.frames[-1]).response["violations"]]
    heat.locator("th.slow a").first.click()
    expect(frame.get_by_text("Node sweep nodes: Node node2 is slow")).to_be_visible()
    expect(frame.get_by_text("scontrol update nodename=node2 state=drain")).to_be_visible()
    frame.locator("#node-runs a").first.click()
    expect(frame.locator("#detail-title")).to_contain_text("pairs-")
