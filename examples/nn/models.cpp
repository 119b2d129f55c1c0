#include "models.hpp"

#include "assemble.hpp"

namespace nn {

template <class T>
std::unique_ptr<network<T>> make_resnet(const resnet_options& options, const execution& execution) {
  auto network_of_model = std::make_unique<network<T>>(options.input, execution);
  assemble_resnet(*network_of_model, options);
  return network_of_model;
}

template <class T>
std::unique_ptr<network<T>> make_resnet50(std::size_t classes, const extent& input, const execution& execution) {
  auto network_of_model = std::make_unique<network<T>>(input, execution);
  assemble_resnet50(*network_of_model, classes);
  return network_of_model;
}

template <class T>
std::unique_ptr<network<T>> make_vgg16(std::size_t classes, const execution& execution) {
  auto network_of_model = std::make_unique<network<T>>(extent{32, 32, 3}, execution);
  assemble_vgg16(*network_of_model, classes);
  return network_of_model;
}

template <class T>
std::unique_ptr<network<T>> make_cnn(cnn_variant variant, std::size_t classes, const extent& input,
                                     const execution& execution) {
  auto network_of_model = std::make_unique<network<T>>(input, execution);
  assemble_cnn(*network_of_model, variant, classes);
  return network_of_model;
}

template std::unique_ptr<network<float>> make_resnet<float>(const resnet_options&, const execution&);
template std::unique_ptr<network<double>> make_resnet<double>(const resnet_options&, const execution&);
template std::unique_ptr<network<float>> make_resnet50<float>(std::size_t, const extent&, const execution&);
template std::unique_ptr<network<double>> make_resnet50<double>(std::size_t, const extent&, const execution&);
template std::unique_ptr<network<float>> make_vgg16<float>(std::size_t, const execution&);
template std::unique_ptr<network<double>> make_vgg16<double>(std::size_t, const execution&);
template std::unique_ptr<network<float>> make_cnn<float>(cnn_variant, std::size_t, const extent&, const execution&);
template std::unique_ptr<network<double>> make_cnn<double>(cnn_variant, std::size_t, const extent&, const execution&);

}  // namespace nn
