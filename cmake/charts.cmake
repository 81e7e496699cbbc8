# The dashboard's chart library (uPlot, MIT), from the npm registry at build time. None
# of it is committed. Charts are optional: without npm or a network the build goes on,
# and the page shows tables and says that charts were not built.
#
# include()d, this file defines the target pykv_charts and the install rule. Run as
# `cmake -P`, it is the fetch itself (arguments: NPM, WORK, OUT).
set(PYKV_UPLOT_VERSION 1.6.32)
set(PYKV_UPLOT_SHA256 4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d)

if(NOT CMAKE_SCRIPT_MODE_FILE)
  option(PYKV_CHARTS "Fetch the dashboard's chart library with npm" ON)
  if(PYKV_CHARTS)
    find_program(PYKV_NPM npm)
    if(PYKV_NPM)
      if(PYKV_INPLACE)
        set(PYKV_CHARTS_OUT ${CMAKE_SOURCE_DIR}/dashboard/static/vendor)
      else()
        set(PYKV_CHARTS_OUT ${CMAKE_CURRENT_BINARY_DIR}/charts/vendor)
      endif()
      add_custom_target(pykv_charts ALL
        COMMAND ${CMAKE_COMMAND} -DNPM=${PYKV_NPM} -DWORK=${CMAKE_CURRENT_BINARY_DIR}/charts
                -DOUT=${PYKV_CHARTS_OUT} -P ${CMAKE_CURRENT_LIST_FILE}
        COMMENT "Chart library for the dashboard" VERBATIM)
      install(DIRECTORY ${PYKV_CHARTS_OUT} DESTINATION pykv/dashboard/static OPTIONAL)
    else()
      message(STATUS "npm not found: the dashboard will show tables instead of charts")
    endif()
  endif()
  return()
endif()

set(stamp ${OUT}/VERSION)
if(EXISTS ${stamp})
  file(READ ${stamp} present)
  if(present STREQUAL PYKV_UPLOT_VERSION)
    return()
  endif()
endif()

file(MAKE_DIRECTORY ${WORK})
set(archive ${WORK}/uplot-${PYKV_UPLOT_VERSION}.tgz)
if(NOT EXISTS ${archive})
  # npm may be a Python script in a virtual environment (pip's package of node), which
  # pip's build isolation would hide from itself by PYTHONPATH.
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH
            ${NPM} pack uplot@${PYKV_UPLOT_VERSION} --ignore-scripts --silent
            --fetch-retries=1 --fetch-timeout=20000
    WORKING_DIRECTORY ${WORK} TIMEOUT 120
    RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE reason)
  if(NOT result EQUAL 0)
    message(WARNING "charts were not built: npm could not fetch uplot@${PYKV_UPLOT_VERSION} "
                    "(${result}) ${reason}\nThe dashboard shows tables; build again with a network.")
    return()
  endif()
endif()

file(SHA256 ${archive} sum)
if(NOT sum STREQUAL PYKV_UPLOT_SHA256)
  file(REMOVE ${archive})
  message(WARNING "charts were not built: uplot@${PYKV_UPLOT_VERSION} has SHA-256 ${sum}, "
                  "expected ${PYKV_UPLOT_SHA256}. The dashboard shows tables.")
  return()
endif()

file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${WORK})
file(REMOVE_RECURSE ${OUT})
file(MAKE_DIRECTORY ${OUT})
file(COPY ${WORK}/package/dist/uPlot.esm.js ${WORK}/package/dist/uPlot.min.css
          ${WORK}/package/LICENSE DESTINATION ${OUT})
file(WRITE ${stamp} ${PYKV_UPLOT_VERSION})
