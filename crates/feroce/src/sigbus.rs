//! The handler of `SIGBUS`, which the kernel raises when a thread accesses mapped memory that is
//! not in its file any more.
//!
//! The adapter maps shared memory that other processes of this host own and have registered. The
//! owner may truncate the file, by mistake or on purpose. A hardware adapter would keep writing to
//! the pages that it has pinned, which no process sees any more. This adapter does the same: the
//! handler replaces a missing page by a page of zeros, and the thread that accessed it continues.
//! If the page should exist, for example because the file has its full length but the host has no
//! memory left, the link detects that and transfers the data another way.
//!
//! The handler is installed with the first memory that needs it. It passes signals for other memory
//! to the handler that was installed before. In a program that blocks the signal when it opens a
//! device there is no handler: the adapter maps only files that cannot be truncated. If the program
//! blocks the signal later, or installs a handler of its own, no mapping is watched any more.

use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use feroce_local::{Guard, Watch};
use nix::sys::signal::{SigSet, Signal};

/// Most pieces of memory that the handler watches.
const MOST: usize = 256;

/// The pieces of memory that the handler watches.
static WATCHED: [Piece; MOST] = [const { Piece::none() }; MOST];

/// The disposition of the signal before the handler was installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A piece of memory that the handler watches.
#[derive(Debug)]
struct Piece {
    /// Its address; zero if the entry is free, [`Piece::TAKEN`] while it is being filled in.
    at: AtomicUsize,
    len: AtomicUsize,
    /// The handler has replaced a page of it.
    is_torn: AtomicBool,
}

impl Piece {
    /// The entry is taken, but the handler does not watch it yet.
    const TAKEN: usize = 1;

    const fn none() -> Self {
        let is_torn = AtomicBool::new(false);
        Self { at: AtomicUsize::new(0), len: AtomicUsize::new(0), is_torn }
    }

    fn has(&self, address: usize) -> bool {
        let at = self.at.load(Ordering::Acquire);
        at > Self::TAKEN && address.wrapping_sub(at) < self.len.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        let [free, taken] = [0, Self::TAKEN];
        self.at.compare_exchange(free, taken, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Handles the signal where memory of other processes is mapped.
#[derive(Debug)]
pub(crate) struct Sigbus;

impl Guard for Sigbus {
    fn watch(&self, at: u64, len: NonZeroUsize) -> Option<Box<dyn Watch>> {
        let at = usize::try_from(at).ok().filter(|at| *at > Piece::TAKEN)?;
        install().then_some(())?;
        let piece = WATCHED.iter().find(|piece| piece.take())?;
        piece.is_torn.store(false, Ordering::Relaxed);
        piece.len.store(len.get(), Ordering::Relaxed);
        piece.at.store(at, Ordering::Release);
        Some(Box::new(Watched(piece)))
    }
}

/// The handler watches the piece until this is dropped.
#[derive(Debug)]
struct Watched(&'static Piece);

impl Watch for Watched {
    #[inline]
    fn is_torn(&self) -> bool {
        self.0.is_torn.load(Ordering::Acquire)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.at.store(0, Ordering::Release);
    }
}

/// Whether this thread blocks the signal. The kernel then ends the process despite a handler.
pub(crate) fn is_blocked() -> bool {
    SigSet::thread_get_mask().is_ok_and(|blocked| blocked.contains(Signal::SIGBUS))
}

/// Installs the handler, unless it is installed already.
fn install() -> bool {
    static TAKEN: OnceLock<bool> = OnceLock::new();
    *TAKEN.get_or_init(|| {
        // SAFETY: `sigaction` is plain data for which all zeros is a valid value.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a signal that exists, and a place for the answer.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
            return false;
        }
        let before = BEFORE.get_or_init(|| before);
        let handler = on_signal as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        let ours = libc::sigaction { sa_sigaction: handler as usize, sa_flags: flags, ..*before };
        // SAFETY: the handler has the signature that the flags require, exists as long as the
        // process does, and calls only functions that a signal handler may call.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) == 0 }
    })
}

extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid description of the signal.
    let about = unsafe { &*info };
    // SAFETY: this signal has an address. If a process sent it (`kill`), the code says so, and the
    // handler ignores the address.
    let (code, address) = (about.si_code, unsafe { about.si_addr() }.addr());
    let watched = WATCHED.iter().find(|piece| piece.has(address));
    if let Some(piece) = watched.filter(|_| code == libc::BUS_ADRERR) {
        // The handler sets the flag before it replaces the page, so that a thread that reads the
        // zeros finds the flag set.
        piece.is_torn.store(true, Ordering::Release);
        // SAFETY: the page is of a mapping that this process has made, and its content is gone
        // already.
        if unsafe { replace(address) } {
            return;
        }
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_IGN if code <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // With the default disposition restored, the thread repeats the access when the handler
            // returns, and the kernel ends the process.
            // SAFETY: plain data, for which all zeros is the default disposition.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: a signal that exists.
            unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
            if code <= 0 {
                // A process sent the signal, so no access repeats it: the handler raises it again.
                // SAFETY: no preconditions.
                unsafe { libc::raise(signal) };
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the flags of the former disposition say that its handler has this signature.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: as above, without the flag.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Replaces the page at an address by a page of zeros.
///
/// # Safety
/// That page is of a mapping that this process has made and holds no references into.
unsafe fn replace(address: usize) -> bool {
    // SAFETY: no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let at = std::ptr::without_provenance_mut(address & !(page - 1));
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page is of a mapping of this process, as the caller says. Another thread may have
    // replaced it just before, and written to it; no other process sees what it wrote.
    unsafe { libc::mmap(at, page, prot, flags, -1, 0) == at }
}
