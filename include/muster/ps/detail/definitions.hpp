// All definitions of muster::ps and of the layers below it, for a program that compiles muster from its headers alone.
#pragma once

#include <muster/elastic/detail/definitions.hpp>

#include <muster/ps/detail/client-inl.hpp>
#include <muster/ps/detail/consistency-inl.hpp>
#include <muster/ps/detail/job-inl.hpp>
#include <muster/ps/detail/job_checks-inl.hpp>
#include <muster/ps/detail/ps_settings-inl.hpp>
#include <muster/ps/detail/table-inl.hpp>
#include <muster/ps/detail/table_files-inl.hpp>
#include <muster/ps/runtime/detail/ps_link-inl.hpp>
