"""How reports are written: one file per format. `registry.py` finds them here; nothing else lists them."""
