"""What a copy does when something breaks: the network, a disk, a process, the other side's word."""
