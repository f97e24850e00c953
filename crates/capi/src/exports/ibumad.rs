//! libibumad.

use crate::umad::{adapter, fields, pairs, port, receive, send, text};

exports! {
    "IBUMAD_1.0" {
        umad_init => fields::umad_init,
        umad_done => fields::umad_done,
        umad_get_cas_names => adapter::umad_get_cas_names,
        umad_get_ca_portguids => adapter::umad_get_ca_portguids,
        umad_open_port => port::umad_open_port,
        umad_get_ca => adapter::umad_get_ca,
        umad_release_ca => adapter::umad_release_ca,
        umad_get_port => adapter::umad_get_port,
        umad_release_port => adapter::umad_release_port,
        umad_close_port => port::umad_close_port,
        umad_get_mad => fields::umad_get_mad,
        umad_get_issm_path => adapter::umad_get_issm_path,
        umad_size => fields::umad_size,
        umad_set_grh => fields::umad_set_grh,
        umad_set_pkey => fields::umad_set_pkey,
        umad_get_pkey => fields::umad_get_pkey,
        umad_set_addr => fields::umad_set_addr,
        umad_set_addr_net => fields::umad_set_addr_net,
        umad_send => send::umad_send,
        umad_recv => receive::umad_recv,
        umad_poll => receive::umad_poll,
        umad_get_fd => port::umad_get_fd,
        umad_register => port::umad_register,
        umad_register2 => port::umad_register2,
        umad_register_oui => port::umad_register_oui,
        umad_unregister => port::umad_unregister,
        umad_status => fields::umad_status,
        umad_get_mad_addr => fields::umad_get_mad_addr,
        umad_debug => text::umad_debug,
        umad_addr_dump => text::umad_addr_dump,
        umad_dump => text::umad_dump,
        umad_class_str => text::umad_class_str,
        umad_method_str => text::umad_method_str,
        umad_common_mad_status_str => text::umad_common_mad_status_str,
        umad_sa_mad_status_str => text::umad_sa_mad_status_str,
        umad_attribute_str => text::umad_attribute_str,
    }
    "IBUMAD_1.1" {
        umad_get_ca_device_list => adapter::umad_get_ca_device_list,
        umad_free_ca_device_list => adapter::umad_free_ca_device_list,
    }
    "IBUMAD_1.2" {
        umad_sort_ca_device_list => adapter::umad_sort_ca_device_list,
    }
    "IBUMAD_1.3" {
        umad_open_smi_port => port::umad_open_port,
    }
    "IBUMAD_1.4" {
        umad_get_smi_gsi_pairs => pairs::umad_get_smi_gsi_pairs,
        umad_get_smi_gsi_pair_by_ca_name => pairs::umad_get_smi_gsi_pair_by_ca_name,
    }
}
