//! What libibverbs gives to the rest of rdma-core: libmlx5, libefa and others bind to all of it
//! when they are loaded, and programs that use those cannot start without. Two of the calls are of
//! use to programs as well; the rest would talk to a kernel driver.
//!
//! Each release of rdma-core that changed one of these calls has a node of its own.

use crate::{stub, verbs};

exports! {
    "IBVERBS_PRIVATE_34", "IBVERBS_PRIVATE_57", "IBVERBS_PRIVATE_59",
    "IBVERBS_PRIVATE_64", "IBVERBS_PRIVATE_65" {
        __ioctl_final_num_attrs => stub::zero,
        __verbs_log => stub::zero,
        _verbs_init_and_alloc_context => stub::null,
        execute_ioctl => stub::code,
        ibv_cmd_advise_mr => stub::code,
        ibv_cmd_alloc_dm => stub::code,
        ibv_cmd_alloc_mw => stub::code,
        ibv_cmd_alloc_pd => stub::code,
        ibv_cmd_attach_mcast => stub::code,
        ibv_cmd_close_xrcd => stub::code,
        ibv_cmd_create_ah => stub::code,
        ibv_cmd_create_counters => stub::code,
        ibv_cmd_create_cq => stub::code,
        ibv_cmd_create_cq_ex => stub::code,
        ibv_cmd_create_flow => stub::code,
        ibv_cmd_create_flow_action_esp => stub::code,
        ibv_cmd_create_qp => stub::code,
        ibv_cmd_create_qp_ex => stub::code,
        ibv_cmd_create_qp_ex2 => stub::code,
        ibv_cmd_create_rwq_ind_table => stub::code,
        ibv_cmd_create_srq => stub::code,
        ibv_cmd_create_srq_ex => stub::code,
        ibv_cmd_create_wq => stub::code,
        ibv_cmd_dealloc_mw => stub::code,
        ibv_cmd_dealloc_pd => stub::code,
        ibv_cmd_dereg_mr => stub::code,
        ibv_cmd_destroy_ah => stub::code,
        ibv_cmd_destroy_counters => stub::code,
        ibv_cmd_destroy_cq => stub::code,
        ibv_cmd_destroy_flow => stub::code,
        ibv_cmd_destroy_flow_action => stub::code,
        ibv_cmd_destroy_qp => stub::code,
        ibv_cmd_destroy_rwq_ind_table => stub::code,
        ibv_cmd_destroy_srq => stub::code,
        ibv_cmd_destroy_wq => stub::code,
        ibv_cmd_detach_mcast => stub::code,
        ibv_cmd_free_dm => stub::code,
        ibv_cmd_get_context => stub::code,
        ibv_cmd_modify_cq => stub::code,
        ibv_cmd_modify_flow_action_esp => stub::code,
        ibv_cmd_modify_qp => stub::code,
        ibv_cmd_modify_qp_ex => stub::code,
        ibv_cmd_modify_srq => stub::code,
        ibv_cmd_modify_wq => stub::code,
        ibv_cmd_open_qp => stub::code,
        ibv_cmd_open_xrcd => stub::code,
        ibv_cmd_poll_cq => stub::code,
        ibv_cmd_post_recv => stub::code,
        ibv_cmd_post_send => stub::code,
        ibv_cmd_post_srq_recv => stub::code,
        ibv_cmd_query_context => stub::code,
        ibv_cmd_query_device_any => stub::code,
        ibv_cmd_query_mr => stub::code,
        ibv_cmd_query_port => stub::code,
        ibv_cmd_query_qp => stub::code,
        ibv_cmd_query_srq => stub::code,
        ibv_cmd_read_counters => stub::code,
        ibv_cmd_reg_dm_mr => stub::code,
        ibv_cmd_reg_dmabuf_mr => stub::code,
        ibv_cmd_reg_mr => stub::code,
        ibv_cmd_req_notify_cq => stub::code,
        ibv_cmd_rereg_mr => stub::code,
        ibv_cmd_resize_cq => stub::code,
        ibv_query_gid_type => verbs::query::ibv_query_gid_type,
        ibv_read_ibdev_sysfs_file => stub::minus_one,
        verbs_init_cq => stub::zero,
        verbs_open_device => stub::null,
        verbs_set_ops => stub::zero,
        verbs_uninit_context => stub::zero,
    }
    "IBVERBS_PRIVATE_57", "IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64", "IBVERBS_PRIVATE_65" {
        ibv_cmd_create_cq_ex2 => stub::code,
        ibv_wr_opcode_str => stub::null,
    }
    "IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64", "IBVERBS_PRIVATE_65" {
        ibv_cmd_alloc_dmah => stub::code,
        ibv_cmd_free_dmah => stub::code,
        ibv_cmd_reg_mr_ex => stub::code,
    }
    "IBVERBS_PRIVATE_64", "IBVERBS_PRIVATE_65" {
        ibv_cmd_export_dmabuf_fd => stub::code,
        ibv_cmd_query_port_speed => stub::code,
        ibv_dmabuf_heap_alloc => stub::null,
        ibv_dmabuf_heap_cc_shared_init => stub::null,
        ibv_dmabuf_heap_destroy => stub::zero,
        ibv_dmabuf_heap_free => stub::zero,
    }
    "IBVERBS_PRIVATE_65" {
        ibv_cmd_create_comp_cntr => stub::code,
        ibv_cmd_destroy_comp_cntr => stub::code,
        ibv_cmd_inc_comp_cntr => stub::code,
        ibv_cmd_inc_err_comp_cntr => stub::code,
        ibv_cmd_qp_attach_comp_cntr => stub::code,
        ibv_cmd_query_comp_cntr_caps => stub::code,
        ibv_cmd_read_comp_cntr => stub::code,
        ibv_cmd_read_err_comp_cntr => stub::code,
        ibv_cmd_set_comp_cntr => stub::code,
        ibv_cmd_set_err_comp_cntr => stub::code,
    }
    "IBVERBS_PRIVATE_34" {
        verbs_register_driver_34 => stub::zero,
    }
    "IBVERBS_PRIVATE_57" {
        verbs_register_driver_57 => stub::zero,
    }
    "IBVERBS_PRIVATE_59" {
        verbs_register_driver_59 => stub::zero,
    }
    "IBVERBS_PRIVATE_64" {
        verbs_register_driver_64 => stub::zero,
    }
    "IBVERBS_PRIVATE_65" {
        verbs_register_driver_65 => stub::zero,
    }
}

/// Exports a byte that is zero.
macro_rules! zero_byte {
    ($name:ident: $($at:literal $node:literal),*) => {
        core::arch::global_asm!(
            concat!(".pushsection .bss.export.", stringify!($name), ",\"aw\",%nobits"),
            $(
                concat!(".globl __feroce_", stringify!($name), "_", $node),
                concat!(".type __feroce_", stringify!($name), "_", $node, ",%object"),
                concat!("__feroce_", stringify!($name), "_", $node, ":"),
            )*
            ".zero 1",
            $(
                concat!(".size __feroce_", stringify!($name), "_", $node, ", 1"),
                concat!(
                    ".symver __feroce_", stringify!($name), "_", $node,
                    ",", stringify!($name), $at, $node
                ),
            )*
            ".popsection",
        );
    };
}

// Whether objects of a device that is gone may be freed: a `bool` that programs may set.
zero_byte! {
    verbs_allow_disassociate_destroy:
    "@@" "IBVERBS_PRIVATE_34", "@" "IBVERBS_PRIVATE_57", "@" "IBVERBS_PRIVATE_59",
    "@" "IBVERBS_PRIVATE_64", "@" "IBVERBS_PRIVATE_65"
}
