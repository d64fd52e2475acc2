/* Stands in for libcurand, of which nothing is asked. */
