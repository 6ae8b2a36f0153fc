// SPDX-License-Identifier: Apache-2.0
// Term: a quantity and the formula from which it was computed, with the numbers inserted. One
// expression yields both, so the output shows exactly what was computed. Values are in bytes,
// seconds and counts.
#pragma once

#include <string>
#include <string_view>

namespace driftless {

// Three digits and a prefix: "1.5 ms", "12.5 GB/s", "81.9 M".
[[nodiscard]] std::string with_prefix(double value, std::string_view unit);

class Term {
 public:
  Term() : Term("0", 0) {}
  // Printed as "name (value unit)".
  Term(std::string_view name, double value, std::string_view unit);
  Term(double value);  // NOLINT(google-explicit-constructor): a plain number of a formula

  [[nodiscard]] double value() const { return value_; }
  [[nodiscard]] const std::string& formula() const { return formula_; }
  // The same value with a name, for use in further formulae.
  [[nodiscard]] Term named(std::string_view name, std::string_view unit) const {
    return {name, value_, unit};
  }

  friend Term operator+(const Term& a, const Term& b);
  friend Term operator-(const Term& a, const Term& b);
  friend Term operator*(const Term& a, const Term& b);
  friend Term operator/(const Term& a, const Term& b);
  friend Term larger(const Term& a, const Term& b);
  friend Term smaller(const Term& a, const Term& b);

 private:
  Term(std::string formula, double value) : value_(value), formula_(std::move(formula)) {}

  double value_ = 0;
  std::string formula_;
  bool sum_ = false;       // a sum or difference: put in parentheses within a product
  bool quotient_ = false;  // a product or quotient: put in parentheses below a fraction
};

}  // namespace driftless
