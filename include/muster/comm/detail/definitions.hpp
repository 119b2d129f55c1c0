// All definitions of muster::comm and of the layers below it, for a program that compiles muster from its headers
// alone.
#pragma once

// GCC reports in headers that frames of coroutines have fields of unnamed types, and that the operator new of a frame,
// which has the coroutine's parameters, does not match the operator delete.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

#include <muster/core/detail/definitions.hpp>

#include <muster/comm/algorithms/detail/algorithm_rules-inl.hpp>
#include <muster/comm/algorithms/detail/calibrate-inl.hpp>
#include <muster/comm/algorithms/detail/chooser-inl.hpp>
#include <muster/comm/algorithms/detail/registry-inl.hpp>
#include <muster/comm/algorithms/detail/tasks-inl.hpp>
#include <muster/comm/bootstrap/detail/assembly-inl.hpp>
#include <muster/comm/bootstrap/detail/context-inl.hpp>
#include <muster/comm/bootstrap/detail/endpoints-inl.hpp>
#include <muster/comm/bootstrap/detail/exchange-inl.hpp>
#include <muster/comm/bootstrap/detail/host_identity-inl.hpp>
#include <muster/comm/bootstrap/detail/launch_env-inl.hpp>
#include <muster/comm/bootstrap/detail/processes-inl.hpp>
#include <muster/comm/bootstrap/detail/rank_threads-inl.hpp>
#include <muster/comm/bootstrap/detail/run_main-inl.hpp>
#include <muster/comm/bootstrap/detail/transport_choice-inl.hpp>
#include <muster/comm/bootstrap/stores/detail/memory_store-inl.hpp>
#include <muster/comm/bootstrap/stores/detail/open_store-inl.hpp>
#include <muster/comm/bootstrap/stores/detail/store-inl.hpp>
#include <muster/comm/bootstrap/stores/detail/watched_record-inl.hpp>
#include <muster/comm/bootstrap/stores/tcp/detail/open_tcp_store-inl.hpp>
#include <muster/comm/bootstrap/stores/tcp/detail/store_client-inl.hpp>
#include <muster/comm/bootstrap/stores/tcp/detail/store_file-inl.hpp>
#include <muster/comm/bootstrap/stores/tcp/detail/store_protocol-inl.hpp>
#include <muster/comm/bootstrap/stores/tcp/detail/store_server-inl.hpp>
#include <muster/comm/bootstrap/stores/tcp/detail/store_table-inl.hpp>
#include <muster/comm/collectives/detail/uneven-inl.hpp>
#include <muster/comm/detail/comm_settings-inl.hpp>
#include <muster/comm/detail/exact_sum-inl.hpp>
#include <muster/comm/detail/messages-inl.hpp>
#include <muster/comm/detail/transport-inl.hpp>
#include <muster/comm/group/detail/group-inl.hpp>
#include <muster/comm/group/detail/group_progress-inl.hpp>
#include <muster/comm/net/detail/acceptor-inl.hpp>
#include <muster/comm/net/detail/address-inl.hpp>
#include <muster/comm/net/detail/event_loop-inl.hpp>
#include <muster/comm/net/detail/handshake-inl.hpp>
#include <muster/comm/net/detail/job_secret-inl.hpp>
#include <muster/comm/net/detail/socket-inl.hpp>
#include <muster/comm/transports/detail/threads-inl.hpp>
#include <muster/comm/transports/hierarchical/detail/connect_hierarchical-inl.hpp>
#include <muster/comm/transports/hierarchical/detail/hierarchical_transport-inl.hpp>
#include <muster/comm/transports/shm/detail/bootstrap-inl.hpp>
#include <muster/comm/transports/shm/detail/connect_shm-inl.hpp>
#include <muster/comm/transports/shm/detail/cores-inl.hpp>
#include <muster/comm/transports/shm/detail/host-inl.hpp>
#include <muster/comm/transports/shm/detail/messages-inl.hpp>
#include <muster/comm/transports/shm/detail/native-inl.hpp>
#include <muster/comm/transports/shm/detail/native_large-inl.hpp>
#include <muster/comm/transports/shm/detail/segment-inl.hpp>
#include <muster/comm/transports/shm/detail/shm_group-inl.hpp>
#include <muster/comm/transports/shm/detail/shm_transport-inl.hpp>
#include <muster/comm/transports/tcp/detail/connect_tcp-inl.hpp>
#include <muster/comm/transports/tcp/detail/connection_manager-inl.hpp>
#include <muster/comm/transports/tcp/detail/frame-inl.hpp>
#include <muster/comm/transports/tcp/detail/link-inl.hpp>
#include <muster/comm/transports/tcp/detail/link_in-inl.hpp>
#include <muster/comm/transports/tcp/detail/link_quality-inl.hpp>
#include <muster/comm/transports/tcp/detail/mesh-inl.hpp>
#include <muster/comm/transports/tcp/detail/pending_connections-inl.hpp>
#include <muster/comm/transports/tcp/detail/tcp_transport-inl.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
