"""tinyserve: a small inference engine that splits prefill and decode over two processes.

The model's key/value cache travels between the processes through Moonpool, layer by layer, while
the next layers are still being computed. Start at README.md; run with ``python -m tinyserve``.
"""
