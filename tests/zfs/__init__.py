"""Replication between pools of two zfs-fuse."""
