"""A program of two ranks: messages of several lengths, a broadcast, a reduction, a remote write."""

from mpi4py import MPI

LENGTHS = (1, 1000, 100_000, 3_000_000)

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
assert comm.Get_size() == 2

for length in LENGTHS:
    message = bytes([length % 251]) * length
    if rank == 0:
        comm.Send(message, 1)
    else:
        received = bytearray(length)
        comm.Recv(received, 0)
        assert received == message

data = bytearray(b"x" * LENGTHS[-1]) if rank == 0 else bytearray(LENGTHS[-1])
comm.Bcast(data, 0)
assert data == b"x" * LENGTHS[-1]
assert comm.allreduce(rank + 1) == 3

window = MPI.Win.Allocate(8, 1, comm=comm)
window.Fence()
if rank == 0:
    window.Put(b"12345678", 1)
window.Fence()
if rank == 1:
    assert bytes(window.tomemory()) == b"12345678"
window.Free()
print(f"rank {rank} is done", flush=True)
