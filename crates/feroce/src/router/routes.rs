//! The requests of a router that are under way.

use std::task::Waker;

use feroce_engine::{Cqe, WcOpcode, WcStatus};
use feroce_train::Instant;
use feroce_wire::Qpn;

use crate::pool::Buf;

/// The requests of a router that are under way. The number of a request tells its slot, which is
/// used again, and a serial number, which is not: a completion that belongs to no request finds
/// none.
#[derive(Debug)]
pub(super) struct Routes {
    slots: Vec<Slot>,
    /// Slots without a request.
    free: Vec<u32>,
    /// Of the next request.
    serial: u32,
    /// The request whose task waits for the queue; the tasks of the others wait for their requests
    /// alone.
    pub(super) leader: Option<u64>,
    /// Tasks were given completions, or took them, since the one that waits for the queue last gave
    /// way.
    pub(super) has_news: bool,
}

#[derive(Debug)]
struct Slot {
    serial: u32,
    route: Option<Route>,
}

#[derive(Debug)]
struct Route {
    /// The caller's number.
    wr_id: u64,
    /// The queue pair, unless the request is in a shared receive queue.
    qpn: Option<Qpn>,
    state: RouteState,
    /// The buffer that the adapter may access until the request is complete.
    buf: Option<Buf>,
}

#[derive(Debug)]
enum RouteState {
    /// Not complete; the task to wake, if it waits already.
    Waiting(Option<Waker>),
    Complete(Cqe),
    /// Not complete, and the future was dropped.
    Abandoned,
}

/// What to do for a completion when the lock is released.
#[derive(Debug, Default)]
pub(super) struct Due {
    wakers: Vec<Waker>,
    /// Of requests whose futures were dropped. Dropping a buffer wakes tasks, too.
    bufs: Vec<Buf>,
}

impl Due {
    pub(super) fn add(&mut self, waker: Option<Waker>, buf: Option<Buf>) {
        self.wakers.extend(waker);
        self.bufs.extend(buf);
    }

    pub(super) fn run(self) {
        drop(self.bufs);
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

/// The number of no request: there are never so many slots.
pub(super) const UNROUTED: u64 = u64::MAX;

fn number(serial: u32, index: usize) -> u64 {
    // There are fewer requests than memory has bytes for their buffers.
    u64::from(serial) << 32 | index as u64
}

impl Routes {
    /// The serial numbers of requests begin with `serial`.
    pub(super) fn new(serial: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), serial, leader: None, has_news: false }
    }

    /// Notes a request; returns its number.
    pub(super) fn begin(&mut self, wr_id: u64, qpn: Option<Qpn>, buf: Option<Buf>) -> u64 {
        let (serial, state) = (self.serial, RouteState::Waiting(None));
        self.serial = serial.wrapping_add(1);
        let slot = Slot { serial, route: Some(Route { wr_id, qpn, state, buf }) };
        let free = self.free.pop().map(|index| index as usize);
        let index = free.unwrap_or(self.slots.len());
        match self.slots.get_mut(index) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        number(serial, index)
    }

    fn route(&mut self, number: u64) -> Option<&mut Route> {
        let slot = self.slots.get_mut(number as u32 as usize)?;
        if u64::from(slot.serial) == number >> 32 { slot.route.as_mut() } else { None }
    }

    /// Forgets a request. Returns its buffer.
    pub(super) fn remove(&mut self, number: u64) -> Option<Buf> {
        let index = number as u32;
        let slot = self.slots.get_mut(index as usize)?;
        let route = slot.route.take_if(|_| u64::from(slot.serial) == number >> 32)?;
        self.free.push(index);
        route.buf
    }

    /// Notes a completion. Returns the task to wake, and the buffer of a request whose future was
    /// dropped.
    pub(super) fn complete(&mut self, mut cqe: Cqe) -> (Option<Waker>, Option<Buf>) {
        let number = cqe.wr_id;
        let Some(route) = self.route(number) else { return (None, None) };
        cqe.wr_id = route.wr_id;
        match std::mem::replace(&mut route.state, RouteState::Complete(cqe)) {
            RouteState::Waiting(waker) => {
                self.has_news |= waker.is_some();
                (waker, None)
            }
            RouteState::Abandoned => (None, self.remove(number)),
            RouteState::Complete(_) => (None, None),
        }
    }

    /// The result of a request that is complete. Otherwise its task is woken when it is.
    pub(super) fn take_or_wait(
        &mut self,
        number: u64,
        waker: &Waker,
    ) -> Option<(Cqe, Option<Buf>)> {
        match &mut self.route(number)?.state {
            RouteState::Complete(cqe) => {
                let cqe = *cqe;
                Some((cqe, self.remove(number)))
            }
            RouteState::Waiting(Some(known)) => {
                known.clone_from(waker);
                None
            }
            state => {
                *state = RouteState::Waiting(Some(waker.clone()));
                None
            }
        }
    }

    /// The future of a request is dropped. The buffer returns to its pool if the adapter has done
    /// with it.
    pub(super) fn abandon(&mut self, number: u64) -> Option<Buf> {
        let route = self.route(number)?;
        if matches!(route.state, RouteState::Complete(_)) {
            return self.remove(number);
        }
        route.state = RouteState::Abandoned;
        None
    }

    /// A request no longer waits. If its task was the one that waits for the queue, another takes
    /// over: the result is to be woken.
    pub(super) fn resign(&mut self, number: u64) -> Option<Waker> {
        if self.leader != Some(number) {
            return None;
        }
        self.leader = None;
        let mut open = self.slots.iter_mut().filter_map(|slot| slot.route.as_mut());
        open.find_map(|route| match &mut route.state {
            RouteState::Waiting(waker) => waker.take(),
            _ => None,
        })
    }

    /// Ends the requests of a queue pair of which no completion will come.
    pub(super) fn flush(&mut self, qpn: Qpn) -> Due {
        let mut due = Due::default();
        for index in 0..self.slots.len() {
            let Slot { serial, route: Some(route) } = &mut self.slots[index] else { continue };
            if route.qpn != Some(qpn) || matches!(route.state, RouteState::Complete(_)) {
                continue;
            }
            // The adapter may still access it.
            route.buf.take().into_iter().for_each(Buf::lose);
            let number = number(*serial, index);
            let cqe = Cqe::new(number, qpn, WcOpcode::Send, WcStatus::Flushed, Instant::ZERO);
            let (waker, buf) = self.complete(cqe);
            due.add(waker, buf);
        }
        due
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        let is_complete = |route: &Route| matches!(route.state, RouteState::Complete(_));
        let left = std::mem::take(&mut self.slots).into_iter().filter_map(|slot| slot.route);
        let open = left.filter(|route| !is_complete(route));
        // The adapter may still access these.
        open.filter_map(|route| route.buf).for_each(Buf::lose);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cqe(number: u64) -> Cqe {
        Cqe::new(number, Qpn::default(), WcOpcode::Send, WcStatus::Success, Instant::ZERO)
    }

    #[test]
    fn a_completion_of_an_earlier_request_finds_none() {
        let mut routes = Routes::new(u32::MAX);
        let earlier = routes.begin(7, None, None);
        assert!(routes.take_or_wait(earlier, Waker::noop()).is_none());
        assert!(routes.complete(cqe(earlier)).0.is_some());
        assert_eq!(routes.take_or_wait(earlier, Waker::noop()).unwrap().0.wr_id, 7);
        // The next request has the same slot.
        let later = routes.begin(8, None, None);
        assert_eq!(later as u32, earlier as u32);
        assert!(routes.take_or_wait(later, Waker::noop()).is_none());
        assert!(routes.complete(cqe(earlier)).0.is_none());
        assert!(routes.complete(cqe(1 << 20)).0.is_none());
        assert!(
            routes.remove(earlier).is_none() && routes.take_or_wait(later, Waker::noop()).is_none()
        );
        assert!(routes.complete(cqe(later)).0.is_some());
        assert_eq!(routes.take_or_wait(later, Waker::noop()).unwrap().0.wr_id, 8);
    }

    #[test]
    fn only_completions_that_tasks_wait_for_are_news() {
        let mut routes = Routes::new(0);
        let (waits, dropped) = (routes.begin(1, None, None), routes.begin(2, None, None));
        assert!(routes.take_or_wait(waits, Waker::noop()).is_none());
        routes.abandon(dropped);
        routes.complete(cqe(dropped));
        assert!(!routes.has_news);
        routes.complete(cqe(waits));
        assert!(routes.has_news);
    }
}
