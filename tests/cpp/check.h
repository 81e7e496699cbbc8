// A test vocabulary of three words. TEST(name) { … } registers a case; CHECK(condition)
// and CHECK_THROWS(type, expression) record failures with their place and go on. main()
// comes with the header: one test file is one program, its arguments are name filters.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

namespace check {

struct Case {
  const char* name;
  void (*run)();
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
inline void fail(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
  ++failures();
}
struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

inline bool selected(const char* name, int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::strstr(name, argv[i]) != nullptr) return true;
  return argc <= 1;
}

inline int run_all(int argc, char** argv) {
  int ran = 0;
  for (const Case& c : cases()) {
    if (!selected(c.name, argc, argv)) continue;
    const int before = failures();
    try {
      c.run();
    } catch (const std::exception& error) {
      fail(c.name, 0, error.what());
    }
    std::printf("%-60s %s\n", c.name, failures() == before ? "ok" : "FAILED");
    ++ran;
  }
  std::printf("%d cases, %d failures\n", ran, failures());
  return ran == 0 || failures() != 0 ? 1 : 0;
}

}  // namespace check

#define TEST(name)                                                  \
  static void test_##name();                                        \
  static const check::Register register_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(condition) ((condition) ? void() : check::fail(__FILE__, __LINE__, "CHECK(" #condition ")"))
#define CHECK_THROWS(type, expression)                                              \
  do {                                                                              \
    bool caught = false;                                                            \
    try {                                                                           \
      (void)(expression);                                                           \
    } catch (const type&) {                                                         \
      caught = true;                                                                \
    }                                                                               \
    if (!caught) check::fail(__FILE__, __LINE__, "no " #type " from " #expression); \
  } while (false)

int main(int argc, char** argv) { return check::run_all(argc, argv); }
