//! libibverbs.
//!
//! The versions of 1.0 that programs of before 2007 bound to, with other structures, are left out.

use crate::stub;

exports! {
    "IBVERBS_1.0" {
        ibv_create_comp_channel => stub::null,
        ibv_destroy_comp_channel => stub::code,
        ibv_rate_to_mult => stub::zero,
        mult_to_ibv_rate => stub::zero,
        ibv_copy_path_rec_from_kern => stub::zero,
        ibv_copy_path_rec_to_kern => stub::zero,
        ibv_copy_qp_attr_from_kern => stub::zero,
        ibv_get_sysfs_path => stub::minus_one,
        ibv_read_sysfs_file => stub::minus_one,
    }
    "IBVERBS_1.1" {
        ibv_ack_async_event => stub::zero,
        ibv_ack_cq_events => stub::zero,
        ibv_alloc_pd => stub::null,
        ibv_attach_mcast => stub::code,
        ibv_close_device => stub::code,
        ibv_create_ah => stub::null,
        ibv_create_ah_from_wc => stub::null,
        ibv_create_cq => stub::null,
        ibv_create_qp => stub::null,
        ibv_create_srq => stub::null,
        ibv_dealloc_pd => stub::code,
        ibv_dereg_mr => stub::code,
        ibv_destroy_ah => stub::code,
        ibv_destroy_cq => stub::code,
        ibv_destroy_qp => stub::code,
        ibv_destroy_srq => stub::code,
        ibv_detach_mcast => stub::code,
        ibv_dofork_range => stub::zero,
        ibv_dontfork_range => stub::zero,
        ibv_event_type_str => stub::null,
        ibv_fork_init => stub::zero,
        ibv_free_device_list => stub::zero,
        ibv_get_async_event => stub::minus_one,
        ibv_get_cq_event => stub::minus_one,
        ibv_get_device_guid => stub::zero,
        ibv_get_device_list => stub::null,
        ibv_get_device_name => stub::null,
        ibv_init_ah_from_wc => stub::code,
        ibv_modify_qp => stub::code,
        ibv_modify_srq => stub::code,
        ibv_node_type_str => stub::null,
        ibv_open_device => stub::null,
        ibv_port_state_str => stub::null,
        ibv_query_device => stub::code,
        ibv_query_gid => stub::minus_one,
        ibv_query_pkey => stub::minus_one,
        ibv_query_port => stub::code,
        ibv_query_qp => stub::code,
        ibv_query_srq => stub::code,
        ibv_rate_to_mbps => stub::zero,
        ibv_reg_mr => stub::null,
        ibv_rereg_mr => stub::minus_one,
        ibv_resize_cq => stub::code,
        ibv_resolve_eth_l2_from_gid => stub::code,
        ibv_wc_status_str => stub::null,
        mbps_to_ibv_rate => stub::zero,
        ibv_copy_ah_attr_from_kern => stub::zero,
    }
    "IBVERBS_1.5" {
        ibv_get_pkey_index => stub::minus_one,
    }
    "IBVERBS_1.6" {
        ibv_qp_to_qp_ex => stub::null,
    }
    "IBVERBS_1.7" {
        ibv_reg_mr_iova => stub::null,
    }
    "IBVERBS_1.8" {
        ibv_reg_mr_iova2 => stub::null,
    }
    "IBVERBS_1.9" {
        ibv_get_device_index => stub::minus_one,
    }
    "IBVERBS_1.10" {
        ibv_import_device => stub::null,
        ibv_import_mr => stub::null,
        ibv_import_pd => stub::null,
        ibv_query_ece => stub::code,
        ibv_set_ece => stub::code,
        ibv_unimport_mr => stub::zero,
        ibv_unimport_pd => stub::zero,
    }
    "IBVERBS_1.11" {
        _ibv_query_gid_ex => stub::code,
        _ibv_query_gid_table => stub::negative,
    }
    "IBVERBS_1.12" {
        ibv_reg_dmabuf_mr => stub::null,
    }
    "IBVERBS_1.13" {
        ibv_import_dm => stub::null,
        ibv_is_fork_initialized => stub::zero,
        ibv_unimport_dm => stub::zero,
    }
    "IBVERBS_1.14" {
        ibv_query_qp_data_in_order => stub::zero,
    }
    "IBVERBS_1.15" {
        ibv_alloc_dmah => stub::null,
        ibv_dealloc_dmah => stub::code,
        ibv_reg_mr_ex => stub::null,
    }
    "IBVERBS_1.16" {
        ibv_dm_export_dmabuf_fd => stub::minus_one,
        ibv_query_port_speed => stub::code,
    }
    "IBVERBS_1.17" {
        ibv_alloc_buf => stub::null,
        ibv_free_buf => stub::zero,
        ibv_reg_buf_mr => stub::null,
    }
    "IBVERBS_1.18" {
        _ibv_query_comp_cntr_caps => stub::code,
        ibv_create_comp_cntr => stub::null,
        ibv_destroy_comp_cntr => stub::code,
        ibv_export_buf_dmabuf_fd => stub::minus_one,
        ibv_inc_comp_cntr => stub::code,
        ibv_inc_err_comp_cntr => stub::code,
        ibv_qp_attach_comp_cntr => stub::code,
        ibv_read_comp_cntr => stub::code,
        ibv_read_err_comp_cntr => stub::code,
        ibv_set_comp_cntr => stub::code,
        ibv_set_err_comp_cntr => stub::code,
    }
}
