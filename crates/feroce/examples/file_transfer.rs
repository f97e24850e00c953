//! A file from one process to another without a buffer in between: both map their file, and the
//! sender writes from its mapping into that of the receiver.
//!
//! The receiver makes no call while the bytes arrive. The last WRITE carries an *immediate*, which
//! takes a receive there and so wakes the receiver.
//!
//! ```text
//! cargo run -p feroce --example file_transfer                                    # both ends
//! cargo run -p feroce --example file_transfer -- receive 127.0.0.1:7472 copy     # or one here
//! cargo run -p feroce --example file_transfer -- send 127.0.0.1:7472 original    # and one there
//! ```

use std::fs::{self, File};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::thread;

use feroce::cm::{ConnParam, Connector, Listener, Manager};
use feroce::{Access, Imm, Iova, Mr, Pd, Remote, Rkey, SendFlags, SendOp, SendWr, WcStatus};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Bytes of one WRITE.
const CHUNK: usize = 1 << 20;

/// A file as registered memory.
struct MappedFile {
    // Declared first: the adapter lets go of the memory before it is unmapped.
    mr: Mr,
    _mapping: Mapping,
}

struct Mapping {
    start: NonNull<std::ffi::c_void>,
    length: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `MappedFile` dropped the registration before, and nothing else has the address.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}

impl MappedFile {
    fn new(pd: &Pd, file: &File, access: Access) -> Result<Self> {
        let length = usize::try_from(file.metadata()?.len())?;
        let whole = NonZeroUsize::new(length).ok_or("an empty file needs no transfer")?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the system chooses the place, so no other memory is replaced.
        let start = unsafe { mmap(None, whole, rights, MapFlags::MAP_SHARED, file, 0)? };
        let mapping = Mapping { start, length };
        // SAFETY: the mapping outlives the registration, and Rust has no reference to its bytes.
        let mr = unsafe { pd.register_raw(start.as_ptr().cast(), length, Iova::Natural, access)? };
        Ok(Self { mr, _mapping: mapping })
    }
}

/// Receives one file.
fn receive(manager: &Manager, listener: &Listener, path: &Path) -> Result {
    let request = listener.accept()?;
    let length = request.private_data().first_chunk().ok_or("the request is too short")?;
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(u64::from_be_bytes(*length))?;

    let pd = manager.context_for(listener.local_addr().ip())?.alloc_pd()?;
    let target = MappedFile::new(&pd, &file, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let Remote { addr, rkey } = target.mr.remote(0);
    let private_data = [addr.to_be_bytes().as_slice(), &rkey.0.to_be_bytes()].concat();
    let param = ConnParam { private_data, ..ConnParam::default() };
    let mut prepared = request.pd(&pd).param(param).prepare()?;
    prepared.post_recv([target.mr.recv(0, 0..0)])?;
    let sender = prepared.accept()?;

    let all = sender.recv_cq().wait()?;
    if all.status != WcStatus::Success {
        return Err(format!("the sender left before the end: {}", all.status).into());
    }
    println!("receiver: {} bytes in {} writes", target.mr.len(), all.imm.0);
    sender.wait_disconnected()?;
    Ok(())
}

fn send(manager: &Manager, to: SocketAddr, path: &Path) -> Result {
    let file = File::options().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    let connector = Connector::new(manager).private_data(&length.to_be_bytes());
    let mut receiver = connector.connect(to)?;
    let reply = receiver.private_data();
    let (addr, rest) = reply.split_first_chunk().ok_or("the reply is too short")?;
    let (rkey, _) = rest.split_first_chunk().ok_or("the reply is too short")?;
    let (addr, rkey) = (u64::from_be_bytes(*addr), Rkey(u32::from_be_bytes(*rkey)));

    let source = MappedFile::new(receiver.pd(), &file, Access::empty())?;
    let writes = source.mr.len().div_ceil(CHUNK);
    for i in 0..writes {
        let part = i * CHUNK..source.mr.len().min((i + 1) * CHUNK);
        let remote = Remote { addr: addr + part.start as u64, rkey };
        let op = match i + 1 == writes {
            true => SendOp::WriteImm(remote, Imm(u32::try_from(writes)?)),
            false => SendOp::Write(remote),
        };
        // Every request is signalled, and at most half of the queue is in use.
        let flags = SendFlags::SIGNALED;
        receiver.post_one(SendWr { flags, ..SendWr::new(i as u64, op, source.mr.data(part)) })?;
        if i >= 64 {
            check(receiver.send_cq().wait()?.status)?;
        }
    }
    for _ in 0..writes.min(64) {
        check(receiver.send_cq().wait()?.status)?;
    }
    println!("sender: {length} bytes in {writes} writes");
    receiver.disconnect()?;
    Ok(())
}

fn check(status: WcStatus) -> Result {
    if status == WcStatus::Success { Ok(()) } else { Err(format!("WRITE: {status}").into()) }
}

fn both_ends() -> Result {
    let folder = std::env::temp_dir().join(format!("feroce-file-transfer-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let (original, copy) = (folder.join("original"), folder.join("copy"));
    let bytes: Vec<u8> =
        (0..5_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&original, &bytes)?;

    let manager = Manager::new();
    let listener = Listener::bind(&manager, "127.80.8.1:0".parse()?)?;
    let to = listener.local_addr();
    thread::scope(|scope| -> Result {
        let receiver = scope.spawn(|| receive(&manager, &listener, &copy));
        send(&manager, to, &original)?;
        receiver.join().map_err(|_| "the receiver panicked")?
    })?;
    assert!(fs::read(&copy)? == bytes, "the copy differs");
    println!("the copy is the same as the original");
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn main() -> Result {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let manager = Manager::new();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", at, path] => {
            receive(&manager, &Listener::bind(&manager, at.parse()?)?, path.as_ref())
        }
        ["send", to, path] => send(&manager, to.parse()?, path.as_ref()),
        _ => both_ends(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::both_ends().expect("the example works");
    }
}
