// Writes the statistics in the text format of Prometheus.
#include <muster/core/number.hpp>

#include "http_connection.hpp"

namespace muster { inline namespace v0 { namespace serve {
namespace {

void append_sample(std::string& text, std::string_view name, std::string_view model, const std::string& labels,
                   double value) {
  text += name;
  text += "{model=\"";
  text += model;
  text += '"';
  if (!labels.empty()) text += "," + labels;
  text += "} ";
  text += number_text(value);
  text += '\n';
}

template <std::size_t Bounds>
void append_histogram(std::string& text, const std::string& name, std::string_view model,
                      const fixed_bucket_histogram<Bounds>& histogram) {
  double below = 0;
  for (std::size_t k = 0; k <= Bounds; ++k) {
    below += static_cast<double>(histogram.count(k));
    const std::string bound = k < Bounds ? number_text(histogram.bounds()[k]) : "+Inf";
    append_sample(text, name + "_bucket", model, "le=\"" + bound + "\"", below);
  }
  append_sample(text, name + "_sum", model, "", histogram.sum());
  append_sample(text, name + "_count", model, "", below);
}

void begin_metric(std::string& text, const std::string& name, const std::string& type, const std::string& help) {
  text += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void append_requests(std::string& text, std::string_view model, const model_statistics& statistics) {
  for (auto status = model_statistics::first_status; status < model_statistics::end_of_statuses; ++status) {
    if (statistics.requests(status) == 0) continue;
    append_sample(text, "muster_serve_requests_total", model, "status=\"" + std::to_string(status) + "\"",
                  static_cast<double>(statistics.requests(status)));
  }
}

}  // namespace

std::string write_metrics(const server_shared& server) {
  const auto models = server.models.all();
  std::string text;
  begin_metric(text, "muster_serve_requests_total", "counter", "Requests that were answered, by status.");
  append_requests(text, "", server.unnamed);
  for (const auto& each : models) append_requests(text, each->name, *each->statistics);
  begin_metric(text, "muster_serve_request_seconds", "histogram", "From the first byte of a request to its answer.");
  for (const auto& each : models)
    append_histogram(text, "muster_serve_request_seconds", each->name, each->statistics->request_seconds);
  begin_metric(text, "muster_serve_batch_rows", "histogram", "Rows that were predicted together.");
  for (const auto& each : models)
    append_histogram(text, "muster_serve_batch_rows", each->name, each->statistics->batch_rows);
  begin_metric(text, "muster_serve_waiting_requests", "gauge", "Requests in the queue of a model.");
  for (const auto& each : models) {
    append_sample(text, "muster_serve_waiting_requests", each->name, "", static_cast<double>(each->requests.waiting()));
  }
  begin_metric(text, "muster_serve_version", "gauge", "The version of a model that is served.");
  for (const auto& each : models)
    append_sample(text, "muster_serve_version", each->name, "", static_cast<double>(each->version));
  begin_metric(text, "muster_serve_failed_loads_total", "counter", "Versions that did not load.");
  text += "muster_serve_failed_loads_total " + std::to_string(server.models.failed_loads()) + "\n";
  return text;
}

}}}  // namespace muster::v0::serve
