/* Digits of pi by the formula of Bailey, Borwein and Plouffe: the sum of its first n terms. */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    long terms = argc > 1 ? atol(argv[1]) : 10;
    double pi = 0, sixteenth = 1;
    for (long k = 0; k < terms; k++) {
        double eight = 8.0 * k;
        pi += sixteenth * (4 / (eight + 1) - 2 / (eight + 4) - 1 / (eight + 5) - 1 / (eight + 6));
        sixteenth /= 16;
    }
    printf("%.15f\n", pi);
    return 0;
}
