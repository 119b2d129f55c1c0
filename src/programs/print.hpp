// How muster-info writes what it found: as JSON, and as lines of text.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <muster/comm/algorithms/profile.hpp>

using json = nlohmann::ordered_json;

json describe_costs(const muster::transport_costs& costs);
/// [[below bytes, algorithm], ...], null in the last.
json describe_choices(std::span<const muster::choices::row> rows);

/// A JSON string without its quotes.
std::string text(const json& value);

/// One line, from what `describe_costs` made.
void print_costs(const char* indent, const std::string& name, const json& costs);
/// A line for each collective, from an object of what `describe_choices` made.
void print_choices(const json& choices);
/// A table of times for each collective, and what the profile makes of them.
void print_measured(const muster::algorithm_profile& profile, const std::vector<muster::measured_time>& times);
