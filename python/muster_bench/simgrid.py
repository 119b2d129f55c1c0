"""Simulated hosts: platform files for SimGrid, and the command line of smpirun."""
import re

from .errors import Refusal

NETWORKS = ("flat", "fat-tree")
LEAF = 32            # hosts at a leaf switch of the fat tree
OVERSUBSCRIBED = 2   # ratio of the hosts' links to the links that leave the switch

# Hosts simulate only the computation that a program requests, so times do not depend on the machine that simulates. A
# message takes its links' latency and its bytes over the shared bandwidth, without corrections for a particular MPI.
SETTINGS = ("smpi/host-speed:1Gf", "smpi/simulate-computation:no", "smpi/cpu-threshold:0", "smpi/test:0", "smpi/iprobe:0",
            "smpi/wtime:0", "network/model:CM02", "network/crosstraffic:0", "network/bandwidth-factor:1",
            "network/latency-factor:1", "network/TCP-gamma:0", "network/weight-S:0")


def bits(text):
    """Returns bits a second of a text such as 10G or 100M."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)", text)
    if not match or float(match.group(1)) == 0:
        raise Refusal(f"'{text}' is no bandwidth (bits a second); write such as 10G")
    return float(match.group(1)) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match.group(2)]


def platform(network, hosts, bandwidth, latency):
    """Returns the platform file for a number of hosts. Every host has a link with this bandwidth and latency in each
    direction to a switch: one switch for all hosts (flat), or a switch for 32 hosts with half as many such links to
    a second level (fat-tree)."""
    if network not in NETWORKS:
        raise Refusal(f"unknown network '{network}' (known: {', '.join(NETWORKS)}); use one of these")
    try:
        seconds = float(latency)
    except ValueError:
        raise Refusal(f"'{latency}' is no latency (seconds of a link); write such as 5e-6") from None
    topology = ""
    if network == "fat-tree":
        leaf = min(LEAF, hosts)
        leaves = -(-hosts // leaf)
        hosts = leaf * leaves
        up = max(1, leaf // OVERSUBSCRIBED)
        topology = f' topology="FAT_TREE" topo_parameters="2;{leaf},{leaves};1,{up};1,1"'
    return ('<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n<platform version="4.1">\n'
            f'  <cluster id="cluster" prefix="host-" suffix="" radical="0-{hosts - 1}" speed="1Gf" bw="{bits(bandwidth):.12g}bps" '
            f'lat="{seconds:.12g}s" sharing_policy="SPLITDUPLEX"{topology}/>\n</platform>\n')


def words(ranks, file):
    """Returns the words that precede the command."""
    return ["smpirun", "-np", str(ranks), "-platform", str(file), *[f"--cfg={setting}" for setting in SETTINGS],
            "--log=root.thres:warning"]
