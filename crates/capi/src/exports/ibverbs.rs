//! libibverbs.
//!
//! The versions of 1.0 that programs of before 2007 bound to, with other structures, are left out.

use crate::{stub, verbs};

exports! {
    "IBVERBS_1.0" {
        ibv_create_comp_channel => verbs::channel::ibv_create_comp_channel,
        ibv_destroy_comp_channel => verbs::channel::ibv_destroy_comp_channel,
        ibv_rate_to_mult => verbs::rate::ibv_rate_to_mult,
        mult_to_ibv_rate => verbs::rate::mult_to_ibv_rate,
        ibv_copy_path_rec_from_kern => stub::zero,
        ibv_copy_path_rec_to_kern => stub::zero,
        ibv_copy_qp_attr_from_kern => stub::zero,
        ibv_get_sysfs_path => verbs::sysfs::ibv_get_sysfs_path,
        ibv_read_sysfs_file => verbs::sysfs::ibv_read_sysfs_file,
    }
    "IBVERBS_1.1" {
        ibv_ack_async_event => verbs::event::ibv_ack_async_event,
        ibv_ack_cq_events => verbs::cq_event::ibv_ack_cq_events,
        ibv_alloc_pd => verbs::pd::ibv_alloc_pd,
        ibv_attach_mcast => verbs::mcast::ibv_attach_mcast,
        ibv_close_device => verbs::context::ibv_close_device,
        ibv_create_ah => verbs::ah::ibv_create_ah,
        ibv_create_ah_from_wc => verbs::ah::ibv_create_ah_from_wc,
        ibv_create_cq => verbs::cq::ibv_create_cq,
        ibv_create_qp => verbs::qp::ibv_create_qp,
        ibv_create_srq => verbs::srq::ibv_create_srq,
        ibv_dealloc_pd => verbs::pd::ibv_dealloc_pd,
        ibv_dereg_mr => verbs::mr::ibv_dereg_mr,
        ibv_destroy_ah => verbs::ah::ibv_destroy_ah,
        ibv_destroy_cq => verbs::cq::ibv_destroy_cq,
        ibv_destroy_qp => verbs::qp::ibv_destroy_qp,
        ibv_destroy_srq => verbs::srq::ibv_destroy_srq,
        ibv_detach_mcast => verbs::mcast::ibv_detach_mcast,
        ibv_dofork_range => verbs::fork::ibv_dofork_range,
        ibv_dontfork_range => verbs::fork::ibv_dontfork_range,
        ibv_event_type_str => verbs::strings::ibv_event_type_str,
        ibv_fork_init => verbs::fork::ibv_fork_init,
        ibv_free_device_list => verbs::device::ibv_free_device_list,
        ibv_get_async_event => verbs::event::ibv_get_async_event,
        ibv_get_cq_event => verbs::cq_event::ibv_get_cq_event,
        ibv_get_device_guid => verbs::device::ibv_get_device_guid,
        ibv_get_device_list => verbs::device::ibv_get_device_list,
        ibv_get_device_name => verbs::device::ibv_get_device_name,
        ibv_init_ah_from_wc => verbs::ah::ibv_init_ah_from_wc,
        ibv_modify_qp => verbs::qp_attr::ibv_modify_qp,
        ibv_modify_srq => verbs::srq::ibv_modify_srq,
        ibv_node_type_str => verbs::strings::ibv_node_type_str,
        ibv_open_device => verbs::table::ibv_open_device,
        ibv_port_state_str => verbs::strings::ibv_port_state_str,
        ibv_query_device => verbs::query::ibv_query_device,
        ibv_query_gid => verbs::query::ibv_query_gid,
        ibv_query_pkey => verbs::query::ibv_query_pkey,
        ibv_query_port => verbs::query::ibv_query_port,
        ibv_query_qp => verbs::qp_attr::ibv_query_qp,
        ibv_query_srq => verbs::srq::ibv_query_srq,
        ibv_rate_to_mbps => verbs::rate::ibv_rate_to_mbps,
        ibv_reg_mr => verbs::mr::ibv_reg_mr,
        ibv_rereg_mr => verbs::mr::ibv_rereg_mr,
        ibv_resize_cq => verbs::cq::ibv_resize_cq,
        ibv_resolve_eth_l2_from_gid => stub::code,
        ibv_wc_status_str => verbs::strings::ibv_wc_status_str,
        mbps_to_ibv_rate => verbs::rate::mbps_to_ibv_rate,
        ibv_copy_ah_attr_from_kern => stub::zero,
    }
    "IBVERBS_1.5" {
        ibv_get_pkey_index => verbs::query::ibv_get_pkey_index,
    }
    "IBVERBS_1.6" {
        ibv_qp_to_qp_ex => verbs::qp_ex::ibv_qp_to_qp_ex,
    }
    "IBVERBS_1.7" {
        ibv_reg_mr_iova => verbs::mr::ibv_reg_mr_iova,
    }
    "IBVERBS_1.8" {
        ibv_reg_mr_iova2 => verbs::mr::ibv_reg_mr_iova2,
    }
    "IBVERBS_1.9" {
        ibv_get_device_index => verbs::device::ibv_get_device_index,
    }
    "IBVERBS_1.10" {
        ibv_import_device => verbs::import::ibv_import_device,
        ibv_import_mr => verbs::import::ibv_import_mr,
        ibv_import_pd => verbs::import::ibv_import_pd,
        ibv_query_ece => stub::code,
        ibv_set_ece => stub::code,
        ibv_unimport_mr => verbs::import::ibv_unimport_mr,
        ibv_unimport_pd => verbs::import::ibv_unimport_pd,
    }
    "IBVERBS_1.11" {
        _ibv_query_gid_ex => verbs::query::_ibv_query_gid_ex,
        _ibv_query_gid_table => verbs::query::_ibv_query_gid_table,
    }
    "IBVERBS_1.12" {
        ibv_reg_dmabuf_mr => verbs::dmabuf::ibv_reg_dmabuf_mr,
    }
    "IBVERBS_1.13" {
        ibv_import_dm => verbs::import::ibv_import_dm,
        ibv_is_fork_initialized => verbs::fork::ibv_is_fork_initialized,
        ibv_unimport_dm => verbs::import::ibv_unimport_dm,
    }
    "IBVERBS_1.14" {
        ibv_query_qp_data_in_order => verbs::qp_attr::ibv_query_qp_data_in_order,
    }
    "IBVERBS_1.15" {
        ibv_alloc_dmah => verbs::buf::ibv_alloc_dmah,
        ibv_dealloc_dmah => verbs::buf::ibv_dealloc_dmah,
        ibv_reg_mr_ex => verbs::mr::ibv_reg_mr_ex,
    }
    "IBVERBS_1.16" {
        ibv_dm_export_dmabuf_fd => stub::minus_one,
        ibv_query_port_speed => verbs::query::ibv_query_port_speed,
    }
    "IBVERBS_1.17" {
        ibv_alloc_buf => verbs::buf::ibv_alloc_buf,
        ibv_free_buf => verbs::buf::ibv_free_buf,
        ibv_reg_buf_mr => verbs::mr::ibv_reg_buf_mr,
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
