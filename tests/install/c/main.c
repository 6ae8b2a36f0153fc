/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the installed C library as a stranger would: it is the one of its header, finds what it
 * loads on demand where that was installed (the argument says whether MPI was built), and says why
 * a file is no configuration. */
#include <driftless/driftless.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  const char* const mpi = argc > 1 && strcmp(argv[1], "ON") == 0
                              ? "\"name\":\"mpi_rma\",\"help\":\"road of MPI one-sided gets\","
                                "\"built\":true"
                              : "\"built\":false";
  driftless_receiver* receiver = NULL;
  driftless_error* error = NULL;
  char* info = NULL;
  int ok = driftless_abi() == DRIFTLESS_ABI;
  ok = driftless_info_json(&info, &error) == DRIFTLESS_OK && ok;
  printf("%s\n", ok ? info : driftless_error_message(error));
  ok = ok && strstr(info, mpi) != NULL;
  driftless_free(info);
  ok = driftless_open("/not/there.yaml", NULL, 0, NULL, &receiver, &error) == DRIFTLESS_NOT_FOUND &&
       ok;
  printf("%s\n", driftless_error_message(error));
  driftless_error_free(error);
  return ok ? 0 : 1;
}
