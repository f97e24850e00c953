//! The C types and their counterparts in feroce, in both directions.
//!
//! Two crates convert: the drop-in library, which is called by C programs, and the backend, which
//! calls C libraries. Each pair of names stands here once, in a table that makes the function for
//! either direction; `X` converts to C and `X_of` from C. A number from C that feroce has no
//! name for becomes `None`.
//!
//! Unions are read by the caller, since this crate has no unsafe code.

mod address;
mod attr;
mod cm;
mod completion;
mod event;
mod values;
mod work;

pub use address::{addr_vec, ah_attr};
pub use attr::{qp_attr, qp_attr_of, qp_cap, qp_cap_of};
pub use cm::{cm_event, cm_event_of, conn_param, conn_param_of};
pub use completion::{cqe, wc, wc_opcode, wc_opcode_of, wc_status, wc_status_of};
pub use event::{Element, async_event, async_event_of};
pub use values::{
    gid_type, gid_type_of, link_layer, link_layer_of, mtu, mtu_of, mw_type, mw_type_of, qp_state,
    qp_state_of, qp_type, qp_type_of,
};
pub use work::{Words, bind_info, send_flags, send_flags_of, send_op, send_wr, sge, sge_of};

/// Makes two functions from a table of pairs: from the enumeration to the number of C, and back.
macro_rules! table {
    ($(#[$doc:meta])* $rust:ident, $c:ident: $to:ident, $from:ident {
        $($variant:ident = $constant:ident,)*
    }) => {
        $(#[$doc])*
        #[inline]
        pub const fn $to(value: $rust) -> $crate::$c {
            match value {
                $($rust::$variant => $crate::$constant,)*
            }
        }

        $(#[$doc])*
        #[inline]
        pub const fn $from(code: $crate::$c) -> Option<$rust> {
            match code {
                $($crate::$constant => Some($rust::$variant),)*
                _ => None,
            }
        }
    };
}

use table;
