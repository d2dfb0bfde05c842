"""What a training program says of itself to the tpuscope agent of its host: see `tpuscope.marks`."""
