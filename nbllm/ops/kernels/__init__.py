"""The ops' kernels in Triton, which is imported here and nowhere else; nothing imports this room before it is needed.

Every kernel computes in fp32 with offsets of 64 bits, and writes only into tensors that its launcher made.
"""
