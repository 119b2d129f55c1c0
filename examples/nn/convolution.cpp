#include "convolution.hpp"

#include <string>

#include <muster/core/error.hpp>

#include "convolution_direct.hpp"
#include "convolution_eigen.hpp"
#include "convolution_winograd.hpp"

namespace nn {

std::vector<std::string_view> convolution_names() { return {"winograd", "direct", "eigen"}; }

template <class T>
std::unique_ptr<convolution<T>> make_convolution(std::string_view backend, const convolution_shape& shape,
                                                 const kernel_set<T>& kernels,
                                                 const std::shared_ptr<workspace<T>>& work) {
  if (backend == "winograd" && winograd_convolution<T>::pays(shape)) {
    return std::make_unique<winograd_convolution<T>>(shape, kernels, work);
  }
  if (backend == "direct" || backend == "winograd") return std::make_unique<direct_convolution<T>>(shape, kernels);
  if (backend == "eigen") return std::make_unique<eigen_convolution<T>>(shape);
  throw muster::configuration_error("there is no way '" + std::string(backend) +
                                    "' to convolve (there are winograd, direct, eigen); use a known name");
}

template std::unique_ptr<convolution<float>> make_convolution<float>(std::string_view, const convolution_shape&,
                                                                     const kernel_set<float>&,
                                                                     const std::shared_ptr<workspace<float>>&);
template std::unique_ptr<convolution<double>> make_convolution<double>(std::string_view, const convolution_shape&,
                                                                       const kernel_set<double>&,
                                                                       const std::shared_ptr<workspace<double>>&);

}  // namespace nn
