# differs: stderr: what is left running is ended before it can complain
from multiprocessing import shared_memory

block = shared_memory.SharedMemory("psm_left", create=True, size=16)
print(block.name)
