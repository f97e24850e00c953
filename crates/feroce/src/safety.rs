//! The mistakes that a program cannot make, and how the types prevent them. This module holds no
//! code.
//!
//! Peers write to registered memory at any time. A program in C must therefore not free it, move it
//! or read it at the wrong moment; with this crate it cannot. The only `unsafe` calls are
//! [`Pd::register_raw`](crate::Pd::register_raw) and [`Pd::raw_region`](crate::Pd::raw_region), for
//! memory that this crate does not own.
//!
//! # Memory outlives its users
//!
//! A region owns its bytes. When an [`Mr`](crate::Mr) is dropped, it first invalidates its keys;
//! then it waits until the adapter accesses no byte of it any more; then it frees the bytes. A
//! request that still names the region fails, whether this program or a peer posted it:
//!
//! ```
//! use feroce::{Access, Device, QpCap, SendOp, SendWr, WcStatus};
//!
//! # let context = Device::at(["127.0.0.40".parse()?]).open()?;
//! # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
//! # let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
//! # let mut peer = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
//! # qp.connect(&peer.endpoint()?)?;
//! # peer.connect(&qp.endpoint()?)?;
//! let source = pd.alloc_mr(64, Access::empty())?;
//! let target = pd.alloc_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let write = SendOp::Write(target.remote(0));
//! drop(target);
//! qp.post_send([SendWr::new(1, write, source.data(0..64))])?;
//! assert_eq!(cq.wait()?.status, WcStatus::RemoteAccess);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A buffer of the program, which it could free while a peer writes to it, cannot be registered:
//!
//! ```compile_fail,E0308
//! # use feroce::{Access, Error, Iova, Pd};
//! # fn f(pd: &Pd) -> Result<(), Error> {
//! let mut buffer = vec![0; 4096];
//! let mr = pd.register(&mut buffer, Iova::Natural, Access::LOCAL_WRITE)?; // not a region
//! # Ok(())
//! # }
//! ```
//!
//! unless the program promises to keep it:
//!
//! ```compile_fail,E0133
//! # use feroce::{Access, Error, Iova, Pd};
//! # fn f(pd: &Pd) -> Result<(), Error> {
//! let mut buffer = vec![0; 4096];
//! let (start, len) = (buffer.as_mut_ptr(), buffer.len());
//! let mr = pd.register_raw(start, len, Iova::Natural, Access::LOCAL_WRITE)?; // unsafe
//! # Ok(())
//! # }
//! ```
//!
//! A request cannot name a region that was dropped:
//!
//! ```compile_fail,E0382
//! # use feroce::{Mr, PostError, Qp, SendOp, SendWr};
//! # fn f(qp: &mut Qp, mr: Mr) -> Result<(), PostError> {
//! drop(mr);
//! qp.post_send([SendWr::new(1, SendOp::Send, mr.data(0..64))]) // moved
//! # }
//! ```
//!
//! and a borrow of its memory cannot outlive it:
//!
//! ```compile_fail,E0505
//! # use feroce::{Error, Mr};
//! # fn f(mr: Mr) -> usize {
//! let region = mr.region();
//! drop(mr); // borrowed
//! region.len()
//! # }
//! ```
//!
//! # No reference leads to bytes that a peer may write
//!
//! The program copies bytes in and out, or accesses them with the atomic operations of
//! [`Region`](crate::Region):
//!
//! ```compile_fail,E0608
//! # fn f(mr: &feroce::Mr) -> u8 {
//! mr[0] // no index
//! # }
//! ```
//!
//! ```compile_fail,E0599
//! # fn f(mr: &feroce::Mr) -> &[u8] {
//! mr.region().as_slice() // no such method
//! # }
//! ```
//!
//! ```compile_fail,E0308
//! # fn f(mr: &feroce::Mr) {
//! let bytes: &[u8] = mr; // no conversion
//! # }
//! ```
//!
//! The bytes of a [`Buf`](crate::Buf) are a slice, because peers cannot reach them: its
//! [`Pool`](crate::Pool) says why. A request takes the buffer away from the program until it is
//! complete:
//!
//! ```compile_fail,E0382
//! # use feroce::{Buf, Qp, Refused, Router, SendOp};
//! # fn f(router: &Router, qp: &mut Qp, mut buf: Buf) -> Result<(), Refused> {
//! let sent = router.send_buf(qp, SendOp::Send, buf, 0..5)?;
//! buf[0] = 1; // moved
//! # Ok(())
//! # }
//! ```
//!
//! # A queue has one writer
//!
//! Posting needs no lock, because the compiler admits only one posting thread at a time:
//!
//! ```compile_fail,E0596
//! # use feroce::{Data, PostError, Qp, SendOp, SendWr};
//! # fn f(qp: &Qp) -> Result<(), PostError> {
//! qp.post_send([SendWr::new(1, SendOp::Send, Data::EMPTY)]) // shared
//! # }
//! ```
//!
//! ```compile_fail,E0499
//! # use feroce::{Data, Qp, SendOp, SendWr};
//! # fn f(qp: &mut Qp) {
//! std::thread::scope(|threads| {
//!     threads.spawn(|| qp.post_send([SendWr::new(1, SendOp::Send, Data::EMPTY)]));
//!     threads.spawn(|| qp.post_send([SendWr::new(2, SendOp::Send, Data::EMPTY)])); // twice
//! });
//! # }
//! ```
//!
//! One thread may post sends while another posts receives, after the program has split the queue
//! pair. Splitting consumes the queue pair:
//!
//! ```
//! # use feroce::{Data, Qp, RecvWr, SendOp, SendWr};
//! # fn f(qp: Qp) {
//! let (handle, mut sender, receiver) = qp.split();
//! std::thread::scope(|threads| {
//!     threads.spawn(|| sender.post([SendWr::new(1, SendOp::Send, Data::EMPTY)]));
//!     threads.spawn(|| receiver.map(|mut r| r.post([RecvWr::default()])));
//! });
//! # }
//! ```
//!
//! ```compile_fail,E0382
//! # use feroce::{Data, PostError, Qp, SendOp, SendWr};
//! # fn f(mut qp: Qp) -> Result<(), PostError> {
//! let (handle, sender, receiver) = qp.split();
//! qp.post_send([SendWr::new(1, SendOp::Send, Data::EMPTY)]) // moved
//! # }
//! ```
//!
//! # Callbacks may run on the driver thread
//!
//! Any thread that drives the adapter calls the [`Tap`](crate::Tap), so a tap must be `Send` and
//! `Sync`:
//!
//! ```compile_fail,E0277
//! use std::{cell::Cell, rc::Rc};
//! # use feroce::{Seen, Tap};
//!
//! #[derive(Debug)]
//! struct Count(Rc<Cell<u64>>);
//!
//! impl Tap for Count { // neither Send nor Sync
//!     fn see(&self, _: &Seen<'_>) {
//!         self.0.set(self.0.get() + 1);
//!     }
//! }
//! ```
//!
//! # A descriptor does not outlive its object
//!
//! ```compile_fail,E0505
//! # use feroce::Context;
//! # use std::os::fd::AsRawFd;
//! # fn f(context: Context) {
//! let fd = context.async_fd().unwrap();
//! drop(context); // borrowed
//! println!("{}", fd.as_raw_fd());
//! # }
//! ```
