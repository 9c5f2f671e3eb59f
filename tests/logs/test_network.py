"""The network that NCCL chose between the ranks, from lines of its releases and of the libfabric plugin."""

import pytest
from logs import line_forms
from logs.line_forms import read_chunks

from steptime.logs.events import line_search
from steptime.logs.training_log import Network
from steptime.recipes.models import Mode

IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_4:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
RAILS_2_30 = "NET/IB : Using [0]mlx5_0:1:3/IB [1]mlx5_1:1:4:0/IB ; OOB eth0:10.0.0.1<0>"
NOT_FOUND = "NET/IB : No device found."
SOCKET = "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>"
CHANNELS = "16 coll channels, 16 collnet channels, {} nvls channels, 32 p2p channels, 2 p2p channels per peer"
COMM = "comm 0x55d0 rank 0 nRanks 72 nNodes 18 localRanks 4 localRank 0 MNNVL {}"
SUPPORT = "NVLS multicast support is available on dev 0"
OFI_1_9 = "NET/OFI Selected Provider is {} (found 16 nics)"
OFI_1_17 = "NET/OFI Selected provider is {}, fabric is efa-direct (found 16 nics)"


def log(*lines, hosts=("gb-016", "gb-017")):
    printed = (f"{host}:2001:2701 [0] NCCL INFO {line}\n" for host in hosts for line in lines)
    return "".join(printed).encode()


def read(*logs):
    return read_chunks([*logs, line_forms.nemo2_log()]).network


@pytest.mark.parametrize(
    ("lines", "summary"),
    [
        ([IB, "Using network IB"], "IB, 3 rails"),
        ([RAILS_2_30, "Using network IB", COMM.format(1), CHANNELS.format(16)], "IB, 2 rails, NVLS, MNNVL"),
        ([IB, "Using network IBext_v8", COMM.format(0), SUPPORT, CHANNELS.format(0)], "IBext_v8, 3 rails"),
        ([NOT_FOUND, SOCKET, "Using network Socket"], "Socket"),
        ([OFI_1_9.format("efa"), "Using network AWS Libfabric"], "AWS Libfabric (efa), 16 rails"),
        ([OFI_1_17.format("efa"), "Using network Libfabric"], "Libfabric (efa), 16 rails"),
    ],
)
def test_the_network_is_what_nccl_says_at_its_start(lines, summary):
    found = read(log(*lines))
    assert found is not None
    assert found.summary == summary
    assert found.nodes == 2


@pytest.mark.parametrize("provider", ["tcp", "tcp;ofi_rxm", "sockets"])
def test_libfabric_over_tcp_is_a_fallback_to_sockets(provider):
    found = read(log(OFI_1_17.format(provider), "Using network Libfabric"))
    assert found is not None
    assert found.socket_nodes == ("gb-016", "gb-017")


def test_the_node_that_falls_back_to_sockets_is_named():
    found = read(log(IB, "Using network IB"), log("Using network Socket", hosts=("gb-018",)))
    assert found is not None
    assert found.socket_nodes == ("gb-018",)
    assert found.summary == "IB and Socket (sockets on gb-018), 3 rails"


def test_the_node_with_the_most_rails_counts_whichever_speaks_last():
    one = "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    both = [log(IB, "Using network IB", hosts=("a",)), log(one, "Using network IB", hosts=("b",))]
    for lines in (both, both[::-1]):
        found = read(*lines)
        assert found is not None
        assert found.summary == "IB, 3 rails"


def test_many_nodes_are_counted():
    found = read(log("Using network Socket", hosts=tuple(f"n{number}" for number in range(9))))
    assert found is not None
    assert found.named_socket_nodes == "n0, n1, n2, n3, n4, n5 and 3 more"


def test_lines_of_other_programs_and_no_lines_at_all_say_nothing():
    assert read() is None
    assert read(b"Using network Socket\n", log(IB, COMM.format(1), CHANNELS.format(8))) is None


def test_a_label_of_the_rank_may_stand_before_the_node():
    assert read(b"12: [2026-11-01 10:00:00] gb-1:7:8 [3] NCCL INFO Using network IB\n") == Network(
        names=("IB",), nodes=1
    )


def test_a_run_that_says_so_is_no_trace_of_nccl():
    assert read_chunks([log(IB, "Using network IB"), line_forms.nemo2_log()]).mode is Mode.PERFORMANCE


def test_there_are_no_more_words_than_the_vectorized_search_takes():
    assert len(line_search().words) <= 64  # one more makes it six times slower
