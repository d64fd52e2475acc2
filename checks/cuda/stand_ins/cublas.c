/* Stands in for libcublas: records products, and whether they are added up in fp32. */
#include <stdlib.h>

#define IN_FP32 68 /* CUBLAS_COMPUTE_32F */

extern void stand_in_record(char event);
int stand_in_coarse_products; /* that are added up in fewer bits */

static int product(int compute) {
  stand_in_record('p');
  stand_in_coarse_products += compute != IN_FP32;
  return 0;
}
int cublasCreate_v2(void **handle) { *handle = malloc(1); return 0; }
const char *cublasGetStatusString(int status) { return "not a status of cuBLAS"; }
const char *cublasGetStatusName(int status) { return "unknown"; }
int cublasGemmEx(void *handle, int a_trans, int b_trans, int m, int n, int k, const void *alpha,
                 const void *a, int a_type, int a_step, const void *b, int b_type, int b_step,
                 const void *beta, void *c, int c_type, int c_step, int compute, int algorithm) {
  return product(compute);
}
int cublasGemmStridedBatchedEx(void *handle, int a_trans, int b_trans, int m, int n, int k,
                               const void *alpha, const void *a, int a_type, int a_step,
                               long long a_stride, const void *b, int b_type, int b_step,
                               long long b_stride, const void *beta, void *c, int c_type,
                               int c_step, long long c_stride, int count, int compute,
                               int algorithm) {
  return product(compute);
}
int cublasSgemm_v2(void) { return product(IN_FP32); }
int cublasSgemmStridedBatched(void) { return product(IN_FP32); }
