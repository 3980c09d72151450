"""Replication between pools of OpenZFS in a virtual machine: what zfs-fuse lacks."""
