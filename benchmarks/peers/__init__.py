"""What Penstock is measured against: the disk itself, SQLite and LMDB."""
