/* A plain MPI program, for comparison with gradtool and for the two figures of its network model. Nothing of gradtool is
 * in it. Every rank is alone on its host, as scripts/shaped-cluster.sh starts them.
 *
 *   mpicc -O2 -o mpi_probe mpi_probe.c && mpirun -n 4 ./mpi_probe [ELEMENTS] [REPEATS]
 *
 * Rank 0 prints one JSON object, times in microseconds:
 *   alpha_us         every rank sends 8 bytes to the next and receives as much: mean of a train of such exchanges,
 *                    median over trains
 *   ring_us          the same with 4 MiB: median of the slowest rank
 *   beta_bytes_per_s 4 MiB over (ring_us - alpha_us): what one link carries while all do
 *   allreduce_us     MPI_Allreduce of ELEMENTS floats in place, the slowest rank: median; and the smallest
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values, int count) {
  qsort(values, (size_t)count, sizeof *values, by_value);
  return values[count / 2];
}

static double slowest(double seconds) {
  double largest = 0.0;
  MPI_Allreduce(&seconds, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return largest;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int elements = argc > 1 ? atoi(argv[1]) : 1 << 20;
  const int repeats = argc > 2 ? atoi(argv[2]) : 10;
  enum { kTrains = 9, kTrain = 100, kPieces = 12, kPiece = 4 << 20 };
  if (size < 2 || elements < 1 || repeats < 1) {
    if (rank == 0) fprintf(stderr, "usage: mpirun -n RANKS mpi_probe [ELEMENTS] [REPEATS], with two ranks at least\n");
    MPI_Finalize();
    return 2;
  }
  double* times = malloc(sizeof *times * (size_t)(repeats > kPieces ? repeats : kPieces));
  char* out = calloc(kPiece, 1);
  char* in = calloc(kPiece, 1);
  float* values = malloc(sizeof *values * (size_t)elements);
  for (int i = 0; i < elements; ++i) values[i] = 1e-3F * (float)(i % 1000);

  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  for (int i = 0; i < kTrains; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int k = 0; k < kTrain; ++k) {
      MPI_Sendrecv(out, 8, MPI_BYTE, next, 0, in, 8, MPI_BYTE, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    times[i] = slowest(MPI_Wtime() - start) / kTrain;
  }
  const double alpha = median(times, kTrains);

  for (int i = 0; i < kPieces; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    MPI_Sendrecv(out, kPiece, MPI_BYTE, next, 1, in, kPiece, MPI_BYTE, previous, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    times[i] = slowest(MPI_Wtime() - start);
  }
  const double ring = median(times, kPieces);

  for (int i = 0; i < repeats; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, values, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    times[i] = slowest(MPI_Wtime() - start);
    for (int k = 0; k < elements; ++k) values[k] *= 1.0F / (float)size;
  }
  const double reduce = median(times, repeats);
  if (rank == 0) {
    printf("{\"ranks\": %d, \"alpha_us\": %.3f, \"ring_us\": %.1f, \"beta_bytes_per_s\": %.6g, \"elements\": %d, "
           "\"allreduce_us\": %.1f, \"allreduce_us_min\": %.1f}\n",
           size, alpha * 1e6, ring * 1e6, kPiece / (ring - alpha), elements, reduce * 1e6, times[0] * 1e6);
  }
  free(values);
  free(in);
  free(out);
  free(times);
  MPI_Finalize();
  return 0;
}
