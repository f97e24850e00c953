//! Asynchronous events.

use feroce_engine::{AsyncEvent, CqId, SrqId};
use feroce_wire::Qpn;

use crate::*;

/// What an event is of, which is a member of the union `element`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    Cq(CqId),
    Qp(Qpn),
    Srq(SrqId),
    Port,
}

/// Makes the functions for either direction from a table: the objects, and the events of each.
macro_rules! events {
    ($($element:ident, $object:ident: $id:ident { $($event:ident = $constant:ident,)* })*
     ; port { $($port:ident = $port_constant:ident,)* }) => {
        /// The type of an event, and what it is of.
        pub fn async_event(event: &AsyncEvent) -> (ibv_event_type, Element) {
            match *event {
                $($(AsyncEvent::$event(object) => ($constant, Element::$element(object)),)*)*
                $(AsyncEvent::$port => ($port_constant, Element::Port),)*
                AsyncEvent::GidChange { .. } => (IBV_EVENT_GID_CHANGE, Element::Port),
                AsyncEvent::LidChange { .. } => (IBV_EVENT_LID_CHANGE, Element::Port),
            }
        }

        /// The event of this type. The three functions read the object of an event, and the one
        /// that the type asks for is called. `None` for events that feroce does not have, and for
        /// changes of GIDs and LIDs: the caller must query what changed.
        pub fn async_event_of(
            event_type: ibv_event_type,
            $($object: impl FnOnce() -> $id,)*
        ) -> Option<AsyncEvent> {
            Some(match event_type {
                $($($constant => AsyncEvent::$event($object()),)*)*
                $($port_constant => AsyncEvent::$port,)*
                _ => return None,
            })
        }
    };
}

events! {
    Cq, cq: CqId {
        CqError = IBV_EVENT_CQ_ERR,
    }
    Qp, qp: Qpn {
        QpFatal = IBV_EVENT_QP_FATAL,
        QpRequestError = IBV_EVENT_QP_REQ_ERR,
        QpAccessError = IBV_EVENT_QP_ACCESS_ERR,
        CommEstablished = IBV_EVENT_COMM_EST,
        SqDrained = IBV_EVENT_SQ_DRAINED,
        LastWqeReached = IBV_EVENT_QP_LAST_WQE_REACHED,
    }
    Srq, srq: SrqId {
        SrqLimitReached = IBV_EVENT_SRQ_LIMIT_REACHED,
        SrqError = IBV_EVENT_SRQ_ERR,
    }
    ; port {
        PortActive = IBV_EVENT_PORT_ACTIVE,
        PortError = IBV_EVENT_PORT_ERR,
        PkeyChange = IBV_EVENT_PKEY_CHANGE,
        SmChange = IBV_EVENT_SM_CHANGE,
        ClientReregister = IBV_EVENT_CLIENT_REREGISTER,
    }
}
